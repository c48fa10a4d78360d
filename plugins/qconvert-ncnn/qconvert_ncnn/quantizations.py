"""Operators that ncnn runs on int8, and their quantizations: symmetric, without -128, with scales equal to the inverse of their inverse.

Such operators round their data, so a tensor that only they read needs no separate rounding.
"""

from __future__ import annotations

import numpy as np

from qconvert.plugin import Array, Graph, Op, Quantization, Tensor, dequantize, float32_tolerance, integer_range

INT8 = "int8"
#: The range of quantized data is -127 to 127.
LIMIT = 127
#: Kinds that ncnn has int8 kernels for: Convolution, ConvolutionDepthWise and InnerProduct.
PRODUCTS = ("Conv", "Gemm", "MatMul")
_PLANES, _MATRIX = 4, 2
#: Offsets of neighbours in float32 that are tried for a scale, the nearest first.
_NEAR = (0, 1, -1, 2, -2, 3, -3)
#: Kernels of depthwise convolutions over 8 channels at once multiply by an approximate reciprocal of the scales (AVX's rcpps), which is
#: off by up to 1.5 * 2^-12 (measured with 1.0.20261020: 2e-4).
_RECIPROCAL = 1.5 * 2.0**-12


def inverse(scale: Array | np.float32) -> Array:
    """Return 1 / scale as float32, which ncnn's files have instead of scales (src/layer/quantize.cpp)."""
    with np.errstate(over="ignore", divide="ignore"):
        return (np.float32(1) / np.asarray(scale, np.float32)).astype(np.float32)


def nearest_invertible_scale(scale: Array) -> Array:
    """Return the nearest scales that equal, in float32, the inverse of their inverse."""
    found = np.asarray(scale, np.float32).copy()
    open_ = np.ones(found.shape, bool)
    for steps in _NEAR:
        other = (np.asarray(scale, np.float32).view(np.int32) + steps).astype(np.int32).view(np.float32)
        holds = open_ & (inverse(inverse(other)) == other)
        found[holds] = other[holds]
        open_ &= ~holds
    return found


def is_fully_connected(graph: Graph, op: Op) -> bool:
    """Return whether a MatMul is a fully connected layer: of vectors or rows, with a constant matrix."""
    weights, rank = graph[op.inputs[1]], graph[op.inputs[0]].rank or 0
    return weights.data is not None and weights.data.ndim == _MATRIX and rank in (2, 3) and not op["trans_a"]


def outputs_axis(op: Op) -> int:
    """Return the output axis of weights."""
    return 1 if op.kind == "MatMul" and not op["trans_b"] else 0


def missing_kernel_reason(graph: Graph, op: Op) -> str:
    """Return why ncnn has no int8 kernel for an operator with quantized weights; "" if it has one for some quantization of the data."""
    data, weights = graph[op.inputs[0]], graph[op.inputs[1]]
    q = weights.quantization
    if weights.data is None or q is None or weights.dtype not in ("int4", INT8):
        return "weights that are not constants of int8"
    if op.kind == "MatMul" and not is_fully_connected(graph, op):
        return "matrices of more dimensions"
    if q.zero_point.any() or q.block_size or q.axis not in (None, outputs_axis(op)):
        return "weights with zero points, or scales that are not along their outputs"
    if data.quantization is None or not data.quantization.is_per_tensor or data.is_constant:
        return "data without a scale"
    if integer_range(data.dtype)[1] - integer_range(data.dtype)[0] > integer_range("uint8")[1]:
        return f"data of {data.dtype}"
    if op.kind != "Conv":
        return ""
    if weights.rank != _PLANES or op["data_format"] != "channels_first":
        return "convolutions that are not over two dimensions"
    groups = int(op["group"])
    if groups > 1 and (q.scale.reshape(-1) != np.repeat(_group_scales(q, groups), max(q.scale.size // groups, 1))).any():
        return "groups whose channels have several scales"
    return ""


def _group_scales(q: Quantization, groups: int) -> Array:
    """Return the first scale of each group; a per-tensor scale unchanged."""
    scale = q.scale.reshape(-1)
    return scale if scale.size == 1 else scale[:: max(scale.size // groups, 1)]


def is_data_quantization(dtype: str, q: Quantization) -> bool:
    """Return whether int8 layers can have data of a quantization: per tensor, zero point 0, without -128."""
    return dtype == INT8 and q.is_per_tensor and not q.zero_point.any() and q.limits(INT8)[0] >= -LIMIT


def has_data_quantization(tensor: Tensor) -> bool:
    """Return whether an activation has a quantization of int8 layers' data."""
    return tensor.quantization is not None and is_data_quantization(tensor.dtype, tensor.quantization)


def is_int8_layer(graph: Graph, op: Op) -> bool:
    """Return whether ncnn runs an operator on int8."""
    return op.kind in PRODUCTS and has_data_quantization(graph[op.inputs[0]]) and not missing_kernel_reason(graph, op)


#: Kinds that select or move values: rounding before them equals rounding after them.
MOVES = ("MaxPool", "GlobalMaxPool", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Slice", "Split", "Concat")


def is_data_movement(graph: Graph, op: Op) -> bool:
    """Return whether an operator is data movement with one quantization."""
    if op.kind not in MOVES or op.attributes.get("activation"):
        return False
    moved = [name for name in op.inputs if graph[name].is_quantized]
    return all(graph[name].shares_quantization(graph[moved[0]]) for name in (*moved, *op.outputs)) if moved else False


def find_reader_rounded(graph: Graph) -> set[str]:
    """Return the quantized tensors that all of their readers round to their quantization."""
    users, found = graph.consumers(), set[str]()
    for op in reversed(graph.ops):
        for name in op.outputs:
            if name and has_data_quantization(graph[name]) and name not in graph.public and users[name]:
                if all(_is_rounding_reader(graph, user, name, found) for user in users[name]):
                    found.add(name)
    return found


def _is_rounding_reader(graph: Graph, op: Op, name: str, found: set[str]) -> bool:
    if is_int8_layer(graph, op):
        return op.inputs[0] == name
    return is_data_movement(graph, op) and all(output in found for output in op.outputs)


def find_integer_tensors(graph: Graph) -> set[str]:
    """Return the tensors between int8 layers that are integers: a convolution rounds them (its int8_scale_term is above 100)."""
    users, found = graph.consumers(), set[str]()
    for op in graph.ops:
        name = op.outputs[0]
        if op.kind != "Conv" or not is_int8_layer(graph, op) or not has_data_quantization(graph[name]) or name in graph.public:
            continue
        if users[name] and all(is_int8_layer(graph, user) and user.inputs[0] == name for user in users[name]):
            found.add(name)
    return found


def tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    """See qconvert.plugin.Kernel."""
    found, _ = float32_tolerance(graph, op, exact)
    if op.kind == "Conv" and op["group"] > 1 and graph[op.inputs[0]].is_quantized:
        return found + _sums(graph, op, exact) * _RECIPROCAL, True
    return found, False


def _sums(graph: Graph, op: Op, exact: Array) -> Array:
    """Return the exact values without their biases, in steps: the factors of the reciprocal."""
    bias = graph.constant(op.inputs[2]) if op.has(2) else None
    if bias is None:
        return np.abs(exact)
    q, result = graph[op.inputs[2]].quantization, graph[op.outputs[0]].quantization
    step = 1.0 if result is None else result.step
    real = (bias.astype(np.float64) if q is None else dequantize(bias, q)).reshape(-1) / step
    if op["data_format"] == "channels_first":
        real = real.reshape(-1, *(1,) * (exact.ndim - 2))
    point = 0 if result is None else result.point
    return np.asarray(np.abs(exact - point - real))
