"""Float data that are rounded to 8 bits when the model runs, and their products with integer weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import subtract_zero_points
from qconvert.arithmetic.storage import EXACT_IN_FLOAT32
from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.noted_operators import turned_name
from qconvert.formats.onnx.ops.integer_arithmetic import AWAY
from qconvert.formats.onnx.values import Value, axes, place_of
from qconvert.graph import Array, Op, Quantization
from qconvert.operators import is_dynamic, kind_of, output_axis, range_axes


def write_dynamic(op: Op, b: Builder, weights: Array, quantization: Quantization, bias: Sequence[str], **window: Any) -> None:
    """Data by DynamicQuantizeLinear, or rounded row by row, an integer product, both scales, and the bias.

    Args:
        op: a Gemm, MatMul or Conv with constant weights.
        b: what is written.
        weights: ..., I,O for a matrix product, O,I,spatial for a convolution.
        quantization: of these.
        bias: none, or the name of its float values.
        window: attributes of a convolution.
    """
    at, data, is_conv = place_of(op, b), op.inputs[0], kind_of(op).has_windows
    along = (1, -1, *[1] * (weights.ndim - 2)) if is_conv else (-1,)
    turned = not is_conv and output_axis(op, 2) == 0
    kernel = b.const(weights, turned_name(op.inputs[1])) if turned else b.stored_value(op.inputs[1])
    by_rows = op["arithmetic"] != "dynamic_tensor"
    if by_rows:
        steps, scale, point = round_dynamic_data(op, b, weights.shape[2:])
        stored, data_point = (steps + 128).cast("uint8"), (point + 128).cast("int32")
    else:
        made = b.make_once("DynamicQuantizeLinear", data, lambda: b.node("DynamicQuantizeLinear", [b.stored_value(data)], 3))
        stored, scale, data_point = map(at.value, made, ("uint8", "float32", "uint8"))
    inputs = [stored.name, kernel, "" if by_rows else data_point.name, _zero_point(b, quantization, weights, at.hint)]
    total = at.value(b.node("ConvInteger" if is_conv else "MatMulInteger", inputs, hint=f"{at.hint}/sum", **window)[0], "int32")
    if by_rows:
        total = total - data_point * subtract_zero_points(weights, quantization).sum(axis=-2, keepdims=True).astype(np.int32)
    real, scales = total.cast("float32"), quantization.scale.reshape(along if quantization.axis is not None else ())
    # By rows in the order of XNNPACK's kernels.
    value = real * scale * scales if by_rows else real * (scale * scales)
    for name in bias:
        added = at.value(name, "float32")
        value = value + (added.then("Reshape", axes(*along)) if is_conv else added)
    b.finish(op, value.name)


def dynamic_data(op: Op, b: Builder) -> str:
    """The float data of a convolution, rounded to the steps of their ranges where it does so when it runs."""
    if not is_dynamic(op):
        return b.float_value(op.inputs[0])
    b.note_decomposed(op)
    weights = b.operand(op, 1).shape or ()
    steps, scale, point = round_dynamic_data(op, b, [size for size in weights[2:] if isinstance(size, int)])
    return ((steps - point) * scale).name


def _zero_point(b: Builder, quantization: Quantization, weights: Array, result: str) -> str:
    points = quantization.zero_point
    if not points.any():
        return "" if weights.dtype == np.int8 else b.const(np.zeros((), weights.dtype), f"{result}/weights/zero_point")
    alike = bool((points == points[0]).all())
    return b.const((points[0] if alike else points).astype(weights.dtype), f"{result}/weights/zero_point")


def round_dynamic_data(op: Op, b: Builder, kernel: Sequence[int]) -> tuple[Value, Value, Value]:
    """Data rounded as XNNPACK does (arithmetic/rounding.py): integers from -128 to 127, scale and zero point, all as float32.

    PyTorch's reduced range is 0 to 127.
    """
    at, rank = place_of(op, b), b.operand(op).rank
    if rank is None:
        raise b.unsupported_error(op, "data of unknown rank", rule="unknown-rank")
    along = [int(axis) for axis in range_axes(op, rank, kernel)]
    lowest, highest = (0, 127) if op["arithmetic"] == "dynamic_reduced" else (-128, 127)

    def write_nodes() -> list[str]:
        data = at.value(b.stored_value(op.inputs[0]), "float32")
        low, high = data.reduce("ReduceMin", *along).then("Min", 0), data.reduce("ReduceMax", *along).then("Max", 0)
        span = high - low
        factor = span.equals(0).where(1, (highest - lowest) / span)
        below, above = low * factor, high * factor
        first = (lowest + below) + (highest + above) > 0
        point = first.where(lowest - below, highest - above).clip(lowest, highest).round()
        steps = ((data * factor).round() + point).clip(lowest, highest)
        return [steps.name, (1 / factor).name, point.name]

    steps, scale, point = (at.value(name, "float32") for name in b.make_once(f"rounded {along} {lowest}", op.inputs[0], write_nodes))
    return steps, scale, point


#: The range of a row of zeros, so that nothing is divided by 0; rows whose values are that small are zeros here.
_LEAST = 1e-30


def rounded_rows(rows: Value, arithmetic: str) -> tuple[Value, Value]:
    """Steps less the zero point, as float32, and the scale of each row, of size 1 along the last axis, or that of the whole tensor.

    Args:
        rows: float32.
        arithmetic: one of OF_ROWS, or of OF_WHOLE_TENSORS, for which there is one scale.
    """
    return _ROUNDINGS[arithmetic](rows)


def product(steps: Value, matrix: Value, *, exact: bool) -> Value:
    """Sums of products of steps with stored integers (of shape inputs, columns), as float32.

    Args:
        steps: float32.
        matrix: int8.
        exact: whether float32 holds every sum (is_sum_exact()); else they are added in float64, and rounded once, as kernels round them.
    """
    if exact:
        return steps @ matrix.cast("float32")
    return (steps.cast("float64") @ matrix.cast("float64")).cast("float32")


def is_sum_exact(weights: Array) -> bool:
    """Whether float32 holds all sums of steps, of 255 at most, with integer weights along their last axis."""
    return int(np.abs(weights.astype(np.int64)).sum(axis=-1).max(initial=0)) * 255 < EXACT_IN_FLOAT32


def _round_symmetric(rows: Value) -> tuple[Value, Value]:
    limit = rows.then("Abs").reduce("ReduceMax", -1).then("Max", _LEAST)
    return (rows * (127 / limit)).round_away(), limit / 127


def _round_asymmetric(rows: Value) -> tuple[Value, Value]:
    low, high = rows.reduce("ReduceMin", -1).then("Min", 0), rows.reduce("ReduceMax", -1).then("Max", 0)
    scale = (high - low).then("Max", _LEAST) / 255
    point = _zero_point_of_rows(low, high, scale)
    # Of x * (1 / scale) onnxruntime makes x / scale, which rounds otherwise; of this it makes nothing.
    placed = (point - rows * (-1 / scale)).round_away()
    return placed.clip(-128, 127) - point, scale


def _round_reduced(values: Value) -> tuple[Value, Value]:
    """0 to 127 for the range of all values, by the reciprocal of the scale, ties to even."""
    low, high = values.then("ReduceMin", keepdims=0).then("Min", 0), values.then("ReduceMax", keepdims=0).then("Max", 0)
    span = high - low
    factor = span.equals(0).where(1, 127 / span)
    point = (low.then("Neg") * factor).clip(0, 127).round()
    stored = ((values * factor).round() + point).clip(0, 127)
    return stored - point, 1 / factor


def _round_tensor(values: Value) -> tuple[Value, Value]:
    """By DynamicQuantizeLinear."""
    stored, scale, point = values.at.nodes("DynamicQuantizeLinear", [values], ("uint8", "float32", "uint8"))
    return stored.cast("float32") - point.cast("float32"), scale


def _zero_point_of_rows(*ends: Value) -> Value:
    """From the end of the range whose error is smaller, in float64: of the lowest value, the highest, and the scale."""
    low, high, scale = (value.cast("float64") for value in ends)
    below, above = low / scale, high / scale
    first = (128 - below) < (127 + above)
    exact = first.where(-128 - below, 127 - above).clip(-128, 127)
    return (exact * AWAY).round().cast("float32")


_ROUNDINGS: Mapping[str, Callable[[Value], tuple[Value, Value]]] = {
    "dynamic_rows": _round_asymmetric,
    "dynamic_symmetric": _round_symmetric,
    "dynamic_reduced": _round_reduced,
    "dynamic_tensor": _round_tensor,
}
