"""PyTorch: exported programs, and what its compilers run as integer kernels.

torch-x86: inductor with freezing lowers products of uint8 data to oneDNN, linear layers only if their weights have a scale for each
channel, and refuses int8 data (measured with 2.13). torch-xnnpack: ExecuTorch's XNNPACK takes int8 data and weights within -127 to 127.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from qconvert.kernels import KERNELS, Kernels
from qconvert.plugins import Storage, Target, Violation

if TYPE_CHECKING:  # targets are listed without numpy
    from qconvert.graph import Graph, Op


_PASSES = ("expand_definitions", "carry_custom", "dynamic_range", "fuse_dilation", "assign_layout", "float_io", "integer_io")

#: Compilers recognize products of dequantized values, not sums of integers.
_PLAIN = {"numerics": "fast", "form": "program"}


def _type_rules(graph: Graph) -> Callable[[Op], Iterator[Violation]]:
    """See plugins.Abilities.own_rules: types of which PyTorch has no quantized tensors."""
    from qconvert.formats.torch.quantized_modules.builder import is_storable

    def broken(op: Op) -> Iterator[Violation]:
        for name in filter(None, op.names):
            if not is_storable(graph[name]):
                yield Violation(f"{op.location}: {name!r} is {graph[name].dtype}", _TYPES, _TYPES_REMEDY)

    return broken


_TYPES = "quantized tensors have 8 bits or are int32"
_TYPES_REMEDY = "write a torch.export program, which has integers of all types: a name that ends in .pt2, or --form program"

_TORCH = Target(
    "torch", "torch", "PyTorch: float between Quantize and Dequantize, integers stored as in the source",
    passes=(*_PASSES[:-2], "match_rounding", *_PASSES[-2:]), write_options={"form": "program"}, layout="channels_first",
    kernels=Kernels(dynamic_range="onnx"),
)  # fmt: skip

TARGETS = (
    _TORCH,
    _TORCH.derive(name="torch-x86", summary="PyTorch compiled by inductor on x86-64 CPUs: uint8 activations, a scale for each channel",
                  write_options=_PLAIN, cpu="x86", storage=Storage(activations="uint8"),
                  kernels=KERNELS["torch:inductor"],
                  passes=(*_PASSES[:4], "matmul_to_gemm", *_PASSES[4:-2], "store_activations", "per_tensor_to_per_axis",
                          "int32_bias_to_float", *_PASSES[-2:])),
    _TORCH.derive(name="torch-modules", summary="TorchScript of quantized modules (.pt, .ptl), for versions without torch.export",
                  write_options={"form": "modules"}, storage=Storage(activations="uint8"),
                  kernels=KERNELS["torch:modules"], own_rules=_type_rules,
                  passes=(*_PASSES[:-2], "store_activations", "int32_bias_to_float", *_PASSES[-2:])),
    _TORCH.derive(name="torch-xnnpack", summary="ExecuTorch with XNNPACK: int8 activations, weights from -127 to 127",
                  write_options=_PLAIN, kernels=Kernels(),
                  storage=Storage(activations="int8", weights="int8", quant_ranges={"int8": (-127, 127)}),
                  passes=(*_PASSES[:-2], "store_activations", "symmetric_weights", "int32_bias_to_float", *_PASSES[-2:])),
)  # fmt: skip
