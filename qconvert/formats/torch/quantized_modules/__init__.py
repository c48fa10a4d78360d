"""Graphs as modules of torch.ao.nn.quantized, which TorchScript keeps: a function for each kind that PyTorch has a quantized kernel for.

Where the kernel is called by aten's operator of float values, the function of writers/ writes it, on quantized tensors. Operators that the
kernels do not take are in float between a dequantize and a quantize, by the functions of writers/ too.
"""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.torch.quantized_modules.builder import ModuleBuilder, ModuleFunction
from qconvert.formats.torch.quantized_modules.operators import WRITERS, write_reinterpret
from qconvert.formats.torch.writing import WriteFunction
from qconvert.graph import Op
from qconvert.kernels import KERNELS
from qconvert.rewriting.lowering import with_conditions_of

__all__ = ["module_writers"]

_KERNELS = KERNELS["torch:modules"]


def module_writers(real: Mapping[str, WriteFunction]) -> Mapping[str, ModuleFunction]:
    """The write functions of modules, by kind, next to those in float."""
    chosen = {kind: _choose_writer(WRITERS.get(kind), real[kind]) for kind, _ in _KERNELS if kind in real}
    return {**real, **chosen, "Reinterpret": write_reinterpret}


def _choose_writer(write: ModuleFunction | None, real: WriteFunction) -> ModuleFunction:
    def choose(op: Op, b: ModuleBuilder) -> None:
        is_float = _KERNELS.find_kernel(b.graph, op, "uint8")[0] is None
        b.on_bytes = write is None and not is_float
        (real if is_float or write is None else write)(op, b)
        b.on_bytes = False

    return with_conditions_of(real, choose)
