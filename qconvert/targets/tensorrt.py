"""TensorRT: ONNX whose quantized values are int8 on symmetric grids. Measured with TensorRT-RTX 1.7.1, which shares parser and graph checks
with TensorRT.

Convolutions and products of int8 on both sides become integer kernels, and what only moves integers goes on with them. All else is computed
in float32 in kernels that are generated, with the roundings between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qconvert.plugins import Target
from qconvert.targets.trtexec import trtexec

if TYPE_CHECKING:  # targets are listed without numpy
    from qconvert.graph import Graph, Op

__all__ = ["TARGETS"]

_PASSES = (
    "expand_definitions", "carry_custom", "dynamic_range", "fold_qat_batch_norm", "fuse_dilation", "fuse_pad", "assign_layout",
    "store_activations", "symmetric_weights", "isolate_float", "float_io", "integer_io", "shift_to_symmetric", "int32_bias_to_float",
    "remove_dead_code",
)  # fmt: skip
_INT8 = ("int8",)
#: Kinds that sum products of int8, beside which a float32 bias stands.
_PRODUCTS = ("Conv", "Gemm", "MatMul")


def _of_two_activations(graph: Graph, op: Op) -> str:
    """Why a product runs on real values: with zero points on both sides it is no sum of products of stored integers."""
    data, other = (graph[name] for name in op.inputs[:2])
    if other.is_constant and not data.is_constant:
        return ""
    points = [tensor.quantization.zero_point.any() for tensor in (data, other) if tensor.quantization is not None]
    return "a product of two activations with zero points" if any(points) else ""


TARGETS = (
    Target(
        "tensorrt", "onnx", "TensorRT: int8 on symmetric grids, the source's integers kept by shifted real values",
        passes=_PASSES, write_options={"numerics": "fast"}, layout="channels_first", activations="int8", weights="int8",
        integer_kernels=dict.fromkeys(_PRODUCTS, _INT8), kernel_faults=dict.fromkeys(_PRODUCTS, _of_two_activations),
        real_biases=_PRODUCTS, real_results=_PRODUCTS, stored_kinds=("ArgMax", "ArgMin", "Resize", "Concat"), unpacked_weights="int8",
        activation_dtypes=_INT8, activation_granularity="per_tensor", symmetric_activations=_INT8, weight_dtypes={"int8": ("int8",)},
        symmetric_weights=True, weight_granularity="per_axis", with_scales="tensorrt-cache", command=trtexec,
    ),
)  # fmt: skip
