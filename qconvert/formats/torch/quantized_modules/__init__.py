"""Graphs as modules of torch.ao.nn.quantized, which TorchScript keeps: a function for each kind that PyTorch has a quantized kernel for.

Operators that the kernels do not take are in float between a dequantize and a quantize, by the functions of writers/.
"""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.torch.quantized_modules import operators
from qconvert.formats.torch.quantized_modules.builder import ModuleFunction
from qconvert.formats.torch.writing import WriteFunction
from qconvert.kernels.torch import kernel_obstacle
from qconvert.rewriting.lowering import with_conditions_of

__all__ = ["WRITERS", "module_writers"]

WRITERS = operators.WRITERS


def module_writers(real: Mapping[str, WriteFunction]) -> Mapping[str, ModuleFunction]:
    """The write functions of modules, by kind, next to those in float."""
    chosen = {kind: _choose_writer(write, real[kind]) for kind, write in WRITERS.items() if kind in real}
    return {**real, **chosen, "Reinterpret": operators.write_reinterpret}


def _choose_writer(write: ModuleFunction, real: WriteFunction) -> ModuleFunction:
    return with_conditions_of(real, lambda op, b: real(op, b) if kernel_obstacle(b.graph, op) else write(op, b))
