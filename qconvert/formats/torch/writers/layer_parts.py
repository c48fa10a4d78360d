"""Parts that written layers and pools share: padding of windows, data rounded at each run, and sums of products as integers.

PyTorch's padding is the same on both sides of an axis; other padding is added before. Data are rounded to 8 bits in float32, as the kernels
named by `arithmetic` do (arithmetic/rounding.py).

In sums, data and weights become whole numbers, zero points taken off, in float32: below 2^24 each part of their sums is exact in whatever
order it is made, and PyTorch's float32 kernels are the fast ones. Longer sums are made in float64. The sum times both scales, in float64,
is the float value. On float values float32 would round the products, and one result in some 100,000 falls on the other side of a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import is_accumulator_scale
from qconvert.formats.torch.program import Node
from qconvert.formats.torch.writers.kernels import finish_tflite_conv
from qconvert.formats.torch.writing import Builder
from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range
from qconvert.operators import kind_of, range_axes
from qconvert.operators.sizes import SAME, window_extent


def pads_of(op: Op, b: Builder, kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """The pads before each axis, then those after each."""
    auto = op["auto_pad"]
    if auto == "NOTSET":
        return list(op["pads"])
    if auto == "VALID":
        return [0] * (2 * len(kernel))
    front, back = [], []
    sizes = b.known_sizes(op, b.shape(op)[2:], f"auto_pad {auto} along an axis of unknown size")
    for size, taps, step, dilation in zip(sizes, kernel, op["strides"], dilations, strict=True):
        total = max((-(-size // step) - 1) * step + window_extent(taps, dilation) - size, 0)
        less, more = total // 2, total - total // 2
        front.append(less if auto == SAME[0] else more)
        back.append(more if auto == SAME[0] else less)
    return front + back


def is_symmetric(pads: Sequence[int]) -> bool:
    """Whether pads are the same before and after each axis."""
    count = len(pads) // 2
    return list(pads[:count]) == list(pads[count:])


def torch_pads(begins: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Pads as PyTorch has them: both sides of the last axis first."""
    return [int(side) for pair in reversed(list(zip(begins, ends, strict=True))) for side in pair]


def pad_conv_data(op: Op, b: Builder, spatial: int) -> tuple[Node, list[int]]:
    """The stored data of a convolution, padded if its padding differs on both sides, and the padding that is left to it."""
    pads = pads_of(op, b, b.known_sizes(op, b.shape(op, 1)[2:], "weights of unknown size"), op["dilations"])
    if is_symmetric(pads):
        return b.stored_input(op), pads[:spatial]
    return pad_data(op, b, pads, None), [0] * spatial


def real_data(op: Op, b: Builder, node: Node) -> Node:
    """Float values of an operator's data, or of what was padded of them."""
    data = b.operand(op)
    if data.quantization is not None:
        return b.dequantize(node, data)
    return b.widen(node) if b.wide else node


def pad_data(op: Op, b: Builder, pads: Sequence[int], filler: float | None) -> Node:
    """Stored data after a pad: with real zero, or with the smallest value for `filler` -inf."""
    data, spatial = b.operand(op), len(pads) // 2
    quantization, value = data.quantization, filler
    if quantization is not None:
        if not quantization.is_per_tensor:
            raise b.unsupported_error(op, "data with scales along an axis", rule="quantized-data")
        value = quantization.point if filler is None else integer_range(data.dtype)[0]
    node = b.pad(data, b.stored_value(data.name), torch_pads(pads[:spatial], pads[spatial:]), 0.0 if value is None else value)
    b.helpers.add(node)
    return node


def round_data(op: Op, b: Builder, data: Node, rank: int, kernel: Sequence[int] = ()) -> Node:
    """Float data rounded as the operator's kernel does.

    Args:
        op: an operator of dynamic range.
        b: what is written.
        data: float32, perhaps padded with zeros; of a recurrent operator, its sequence of data, or the hidden values of one step.
        rank: of the data.
        kernel: sizes of the windows of a convolution.
    """
    axes = [int(axis) for axis in range_axes(op, rank, kernel)]
    low = b.aten("clamp_max", b.aten("amin", data, axes, True), 0.0)
    high = b.aten("clamp_min", b.aten("amax", data, axes, True), 0.0)
    b.note_operator()
    steps, scale = _ROUNDINGS[op["arithmetic"]](b, data, low, high)
    real = "float64" if b.wide else "float32"
    return b.cast(steps, real) * b.cast(scale, real)


def _guard_empty_range(b: Builder, low: Node, high: Node, otherwise: Callable[[Node], Node]) -> Node:
    """A number made of the span of a range; 1 for a range that is 0 alone."""
    span = high - low
    return b.aten("where.self", b.aten("eq.Tensor", low, high), b.aten("ones_like", span), otherwise(span))


def _clamp_steps(b: Builder, scaled: Node, point: Node, lowest: int, highest: int) -> Node:
    """Rounded steps from a zero point, clipped to the range of a type."""
    whole = b.aten("round", b.aten("clamp", point, float(lowest), float(highest)))
    steps = b.aten("round", scaled) + whole
    return b.aten("clamp", steps, float(lowest), float(highest)) - whole


def _xnnpack(b: Builder, x: Node, low: Node, high: Node) -> tuple[Node, Node]:
    """The zero point from the end of the range whose error is smaller."""
    factor = _guard_empty_range(b, low, high, lambda span: _divide_number(b, 255.0, span))
    below, above = (end * factor for end in (low, high))
    errors = below + -128.0 + (above + 127.0)
    first, last = b.aten("rsub.Scalar", below, -128.0), b.aten("rsub.Scalar", above, 127.0)
    point = b.aten("where.self", b.aten("gt.Scalar", errors, 0.0), first, last)
    return _clamp_steps(b, x * factor, point, -128, 127), b.aten("reciprocal", factor)


def _symmetric(b: Builder, x: Node, low: Node, high: Node) -> tuple[Node, Node]:
    largest = b.aten("maximum", b.aten("neg", low), high)
    empty = b.aten("eq.Scalar", largest, 0.0)
    zeros, ones = b.aten("zeros_like", largest), b.aten("ones_like", largest)
    scaled = x * b.aten("where.self", empty, zeros, _divide_number(b, 127.0, largest))
    half = b.aten("sign", scaled) * 0.5
    steps = b.aten("clamp", b.aten("trunc", scaled + half), -127.0, 127.0)
    return steps, b.aten("where.self", empty, ones, largest / 127.0)


def _divide_number(b: Builder, number: float, node: Node) -> Node:
    """number / node, rounded once."""
    return b.aten("full_like", node, number) / node


def _tensor(b: Builder, x: Node, low: Node, high: Node) -> tuple[Node, Node]:
    scale = _guard_empty_range(b, low, high, lambda span: span / 255.0)
    point = b.aten("neg", low) / scale
    return _clamp_steps(b, x / scale, point, 0, 255), scale


def _reduced_range(b: Builder, x: Node, low: Node, high: Node) -> tuple[Node, Node]:
    factor = _guard_empty_range(b, low, high, lambda span: _divide_number(b, 127.0, span))
    point = b.aten("neg", low) * factor
    return _clamp_steps(b, x * factor, point, 0, 127), b.aten("reciprocal", factor)


_ROUNDINGS: Mapping[str, Callable[[Builder, Node, Node, Node], tuple[Node, Node]]] = {
    "dynamic": _xnnpack,
    "dynamic_images": _xnnpack,
    "dynamic_symmetric": _symmetric,
    "dynamic_tensor": _tensor,
    "dynamic_reduced": _reduced_range,
}


_EXACT_IN_FLOAT32 = 2.0**24
_TYPES = ("int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2")


def computes_on_quantizations(graph: Graph, op: Op) -> bool:
    """Whether an operator computes float values of integers with quantizations, or rounds float values onto one, but for a Quantize that
    rounds as PyTorch's own operator does."""
    if kind_of(op).rule not in ("real", "index", "convert") or op.kind == "Dequantize" or op.attributes.get("arithmetic") == "reciprocal":
        return False
    quantizations = [graph[name].quantization for name in op.names if name]
    return any(quantization is not None for quantization in quantizations) and not any(
        quantization is not None and quantization.block_size for quantization in quantizations
    )


def integer_sum(op: Op, b: Builder, data: Node, made: Callable[[Node, Node, Node | None], Node], axis: int, length: int) -> Node | None:
    """The float values, in float64, of a sum of products; None if it has no exact integers.

    Args:
        op: a Conv, ConvTranspose, Gemm or MatMul.
        b: what is written.
        data: the node of its stored data, perhaps padded.
        made: writes the operator of data, weights and bias, or None for no bias.
        axis: of the result, along which the weights' scales run.
        length: how many products a sum has at most.
    """
    x, w = b.operand(op), b.operand(op, 1)
    quantizations = x.quantization, w.quantization
    if (
        not b.wide
        or quantizations[0] is None
        or quantizations[1] is None
        or not (_fits(x, None) and _fits(w, 0 if kind_of(op).has_weights else None))
    ):
        return None
    bias = b.operand(op, 2) if op.has(2) else None
    scale = quantizations[0].scale.astype(np.float64) * quantizations[1].scale.astype(np.float64)
    joins = bias is not None and bias.quantization is not None and is_accumulator_scale(bias.quantization.scale, scale)
    largest = _largest(x, w, length) + (_magnitude(bias) if bias is not None and joins else 0)
    dtype = "float32" if largest < _EXACT_IN_FLOAT32 else "float64"
    b.note_operator()
    steps = subtract_zero_point(b, data, dtype, quantizations[0], 0)
    weights = subtract_zero_point(b, b.stored_value(w.name), dtype, quantizations[1], w.rank or 0)
    joined = b.cast(b.stored_value(bias.name), dtype) if bias is not None and joins else None
    total = made(steps, weights, joined)
    shape = [-1 if place == axis else 1 for place in range(len(b.shape(op, op.outputs[0])))]
    real = total * b.buffer(scale.reshape(shape if scale.size > 1 else [1] * len(shape)), f"{op.outputs[0]}/factor")
    if bias is None or joins:
        return real
    along = b.float_value(bias.name)
    return real + (b.aten("reshape", along, shape) if len(shape) - axis > 1 else along)


def sum_as_tflite(op: Op, b: Builder, data: Node, made: Callable[[Node, Node, Node | None], Node]) -> bool:
    """Writes a convolution of 16-bit data with the integers of TFLite's kernel; False where quantizations are missing.

    Args:
        op: the Conv.
        b, data, made: as in integer_sum().
    """
    x, w, y = (b.tensor(name) for name in (*op.inputs[:2], *op.outputs))
    if x.quantization is None or w.quantization is None or y.quantization is None:
        return False
    bias = b.cast(b.stored_input(op, 2), "float64") if op.has(2) else None
    weights = subtract_zero_point(b, b.stored_value(w.name), "float64", w.quantization, w.rank or 0)
    total = made(subtract_zero_point(b, data, "float64", x.quantization, 0), weights, bias)
    finish_tflite_conv(op, b, total, (x.quantization, w.quantization, y.quantization))
    return True


def subtract_zero_point(b: Builder, node: Node, dtype: str, quantization: Quantization, rank: int) -> Node:
    """Stored integers less their zero point, as float32 or float64.

    Args:
        b: what is written.
        node: the integers.
        dtype: the type.
        quantization: theirs.
        rank: of them, where scales may run along their first axis.
    """
    real = b.cast(node, dtype)
    points = np.unique(quantization.zero_point)
    if points.size == 1:
        return real if points[0] == 0 else real - float(points[0])
    along = quantization.zero_point.astype(dtype).reshape([-1, *[1] * (rank - 1)])
    return real - b.buffer(along, f"{node.name}/zero_points")


def _fits(tensor: Tensor, axis: int | None) -> bool:
    """Whether a tensor has few bits, and one scale or one for each index of an axis."""
    quantization = tensor.quantization
    return quantization is not None and tensor.dtype in _TYPES and not quantization.block_size and quantization.axis in (None, axis)


def _magnitude(tensor: Tensor) -> float:
    """The largest magnitude of the whole numbers that a tensor may hold."""
    if tensor.data is not None and tensor.data.size:
        ends: Any = int(tensor.data.min()), int(tensor.data.max())
    else:
        ends = integer_range(tensor.dtype)
    points = tensor.quantization.zero_point if tensor.quantization is not None else np.zeros(1, np.int64)
    return float(max(abs(ends[0] - int(points.max())), abs(ends[1] - int(points.min()))))


def _largest(x: Tensor, w: Tensor, length: int) -> float:
    """More than any part of a sum of products."""
    if w.data is not None and w.quantization is not None and w.quantization.axis in (None, 0) and w.data.ndim > 1:
        sizes = np.abs(w.steps())
        if length == np.prod(w.data.shape[1:]):
            return _magnitude(x) * float(sizes.sum(axis=tuple(range(1, w.data.ndim))).max(initial=0))
        return _magnitude(x) * length * float(sizes.max(initial=0))
    return _magnitude(x) * _magnitude(w) * length
