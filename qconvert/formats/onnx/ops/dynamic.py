"""Float data that are rounded to 8 bits when the model runs, and their products with integer weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import scale_and_zero_point
from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder
from qconvert.formats.onnx.noted_operators import turned_name
from qconvert.formats.onnx.ops.integer_arithmetic import AWAY, Emitter
from qconvert.graph import Array, Op, Quantization
from qconvert.operators import is_dynamic, kind_of, output_axis, range_axes

__all__ = ["dynamic_data", "is_sum_exact", "product", "rounded_rows", "write_dynamic"]


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
    result, data, is_conv = op.outputs[0], op.inputs[0], kind_of(op).has_windows
    kind = "ConvInteger" if is_conv else "MatMulInteger"
    along = (1, -1, *[1] * (weights.ndim - 2)) if is_conv else (-1,)
    turned = not is_conv and output_axis(op, 2) == 0
    kernel = b.const(weights, turned_name(op.inputs[1])) if turned else b.stored_value(op.inputs[1])
    point = _zero_point(b, quantization, weights, result)
    by_rows = op["arithmetic"] != "dynamic_tensor"
    if by_rows:
        stored, scale, data_point = _rows(op, b, weights)
    else:
        stored, scale, data_point = b.make_once(
            "DynamicQuantizeLinear", data, lambda: b.node("DynamicQuantizeLinear", [b.stored_value(data)], 3)
        )
    inputs = [stored, kernel, "" if by_rows else data_point, point]
    total = b.node(kind, inputs if point else inputs[: 2 if by_rows else 3], hint=f"{result}/sum", **window)[0]
    if by_rows:
        steps = weights.astype(np.int64) - scale_and_zero_point(quantization, weights.shape)[1].astype(np.int64)
        sums = steps.sum(axis=-2, keepdims=True).astype(np.int32)
        total = b.node("Sub", [total, b.node("Mul", [data_point, b.const(sums, f"{result}/sums")])[0]], hint=f"{result}/centred")[0]
    real = b.cast(total, "float32", hint=f"{result}/sum_real")
    scales = quantization.scale.reshape(along) if quantization.axis is not None else quantization.scale.reshape(())
    steps_of = b.const(scales, f"{result}/weights/scale")
    if by_rows:  # in the order of XNNPACK's kernels
        value = b.node("Mul", [b.node("Mul", [real, scale])[0], steps_of], hint=f"{result}/scaled")[0]
    else:
        value = b.node("Mul", [real, b.node("Mul", [scale, steps_of], hint=f"{result}/scale")[0]], hint=f"{result}/scaled")[0]
    for name in bias:
        if is_conv:
            name = b.node("Reshape", [name, b.const(np.array(along, np.int64), f"{result}/bias_shape")], hint=f"{result}/bias")[0]
        value = b.node("Add", [value, name], hint=f"{result}/biased")[0]
    b.finish(op, value)


def dynamic_data(op: Op, b: Builder) -> str:
    """The float data of a convolution, rounded to the steps of their ranges where it does so when it runs."""
    if not is_dynamic(op):
        return b.float_value(op.inputs[0])
    b.note_decomposed(op)
    weights = b.tensor(op.inputs[1]).shape or ()
    steps, scale, point = round_dynamic_data(op, b, [size for size in weights[2:] if isinstance(size, int)])
    return b.node("Mul", [b.node("Sub", [steps, point])[0], scale], hint=f"{op.outputs[0]}/rounded")[0]


def _zero_point(b: Builder, quantization: Quantization, weights: Array, result: str) -> str:
    points = quantization.zero_point
    if not points.any():
        return "" if weights.dtype == np.int8 else b.const(np.zeros((), weights.dtype), f"{result}/weights/zero_point")
    alike = bool((points == points[0]).all())
    return b.const((points[0] if alike else points).astype(weights.dtype), f"{result}/weights/zero_point")


def _rows(op: Op, b: Builder, weights: Array) -> tuple[str, str, str]:
    """Each row as uint8, its scale, and its zero point as int32."""
    steps, scale, point = round_dynamic_data(op, b, weights.shape[2:])
    shift = b.const(np.float32(128), f"{op.outputs[0]}/shift")
    moved = [b.node("Add", [name, shift])[0] for name in (steps, point)]
    stored, points = (b.node("Cast", [name], to=ELEMENT_TYPES[dtype])[0] for name, dtype in zip(moved, ("uint8", "int32"), strict=True))
    return stored, scale, points


def round_dynamic_data(op: Op, b: Builder, kernel: Sequence[int]) -> tuple[str, str, str]:
    """Data rounded as XNNPACK does (arithmetic/rounding.py): integers from -128 to 127, scale and zero point, all as float32.

    PyTorch's reduced range is 0 to 127.
    """
    data, rank = b.stored_value(op.inputs[0]), b.tensor(op.inputs[0]).rank
    if rank is None:
        raise b.unsupported_error(op, "data of unknown rank", rule="unknown-rank")
    axes = [int(axis) for axis in range_axes(op, rank, kernel)]
    lowest, highest = (0, 127) if op["arithmetic"] == "dynamic_reduced" else (-128, 127)

    def value(number: float) -> str:
        return b.make_once("constant", str(number), lambda: [b.const(np.float32(number), f"value_{number:g}")])[0]

    def write_nodes() -> list[str]:
        low = b.node("Min", [b.reduce("ReduceMin", data, axes), value(0)])[0]
        high = b.node("Max", [b.reduce("ReduceMax", data, axes), value(0)])[0]
        span = b.node("Sub", [high, low])[0]
        empty = b.node("Equal", [span, value(0)])[0]
        factor = b.node("Where", [empty, value(1), b.node("Div", [value(highest - lowest), span])[0]])[0]
        below, above = (b.node("Mul", [end, factor])[0] for end in (low, high))
        errors = [b.node("Add", [value(end), b_end])[0] for end, b_end in ((lowest, below), (highest, above))]
        first = b.node("Greater", [b.node("Add", errors)[0], value(0)])[0]
        points = [b.node("Sub", [value(end), b_end])[0] for end, b_end in ((lowest, below), (highest, above))]
        exact = b.node("Clip", [b.node("Where", [first, *points])[0], value(lowest), value(highest)])[0]
        point = b.node("Round", [exact])[0]
        steps = b.node("Add", [b.node("Round", [b.node("Mul", [data, factor])[0]])[0], point])[0]
        return [b.node("Clip", [steps, value(lowest), value(highest)])[0], b.node("Div", [value(1), factor])[0], point]

    steps, scale, point = b.make_once(f"rounded {axes} {lowest}", op.inputs[0], write_nodes)
    return steps, scale, point


_FLOAT32, _FLOAT64 = ELEMENT_TYPES["float32"], ELEMENT_TYPES["float64"]
#: Whole numbers up to which float32 holds all.
_EXACT32 = 2**24
#: The range of a row of zeros, so that nothing is divided by 0; rows whose values are that small are zeros here.
_LEAST = 1e-30


def rounded_rows(b: Builder, to: Emitter, rows: str, arithmetic: str, hint: str) -> tuple[str, str]:
    """Steps less the zero point, as float32, and the scale of each row, of size 1 along the last axis, or that of the whole tensor.

    Args:
        b: the graph.
        to: where the nodes go.
        rows: float32.
        arithmetic: one of OF_ROWS, or of OF_WHOLE_TENSORS, for which there is one scale.
        hint: for names.
    """
    return _ROUNDINGS[arithmetic](b, to, rows, hint)


def product(b: Builder, to: Emitter, steps: str, matrix: str, hint: str, *, exact: bool) -> str:
    """Sums of products of steps with stored integers (of shape inputs, columns), as float32.

    Args:
        b: the graph.
        to: where the nodes go.
        steps: float32.
        matrix: int8.
        hint: for names.
        exact: whether float32 holds every sum (summed_exactly()); else they are added in float64, and rounded once, as kernels round them.
    """
    if exact:
        return to.node("MatMul", [steps, *to.node("Cast", [matrix], hint=f"{hint}/weights", to=_FLOAT32)], hint=f"{hint}/sums")[0]
    wide = [to.node("Cast", [value], hint=f"{hint}/float64", to=_FLOAT64)[0] for value in (steps, matrix)]
    return to.node("Cast", to.node("MatMul", wide, hint=f"{hint}/sums"), hint=f"{hint}/sums", to=_FLOAT32)[0]


def is_sum_exact(weights: Array) -> bool:
    """Whether float32 holds all sums of steps, of 255 at most, with integer weights along their last axis."""
    return int(np.abs(weights.astype(np.int64)).sum(axis=-1).max(initial=0)) * 255 < _EXACT32


def _round_symmetric(b: Builder, to: Emitter, rows: str, hint: str) -> tuple[str, str]:
    largest = _end(b, to, "ReduceMax", to.node("Abs", [rows], hint=f"{hint}/magnitude")[0], hint)
    limit = to.node("Max", [largest, _scalar(b, _LEAST)], hint=f"{hint}/largest")[0]
    factor = to.node("Div", [_scalar(b, 127), limit], hint=f"{hint}/factor")[0]
    steps = _round_half_away(b, to, to.node("Mul", [rows, factor], hint=f"{hint}/scaled")[0], hint)
    return steps, to.node("Div", [limit, _scalar(b, 127)], hint=f"{hint}/scale")[0]


def _round_asymmetric(b: Builder, to: Emitter, rows: str, hint: str) -> tuple[str, str]:
    zero = _scalar(b, 0)
    low = to.node("Min", [_end(b, to, "ReduceMin", rows, hint), zero], hint=f"{hint}/low")[0]
    high = to.node("Max", [_end(b, to, "ReduceMax", rows, hint), zero], hint=f"{hint}/high")[0]
    span = to.node("Max", [to.node("Sub", [high, low], hint=f"{hint}/span")[0], _scalar(b, _LEAST)], hint=f"{hint}/span")[0]
    scale = to.node("Div", [span, _scalar(b, 255)], hint=f"{hint}/scale")[0]
    point = _zero_point_of_rows(b, to, (low, high, scale), hint)
    # Of x * (1 / scale) onnxruntime makes x / scale, which rounds otherwise; of this it makes nothing.
    factor = to.node("Div", [_scalar(b, -1), scale], hint=f"{hint}/factor")[0]
    scaled = to.node("Mul", [rows, factor], hint=f"{hint}/scaled")
    placed = _round_half_away(b, to, to.node("Sub", [point, *scaled], hint=f"{hint}/placed")[0], hint)
    stored = to.node("Clip", [placed, _scalar(b, -128), _scalar(b, 127)], hint=f"{hint}/stored")
    return to.node("Sub", [*stored, point], hint=f"{hint}/steps")[0], scale


def _round_reduced(b: Builder, to: Emitter, values: str, hint: str) -> tuple[str, str]:
    """0 to 127 for the range of all values, by the reciprocal of the scale, ties to even."""
    zero, highest = _scalar(b, 0), _scalar(b, 127)
    low = to.node("Min", [to.node("ReduceMin", [values], hint=f"{hint}/end", keepdims=0)[0], zero], hint=f"{hint}/low")[0]
    high = to.node("Max", [to.node("ReduceMax", [values], hint=f"{hint}/end", keepdims=0)[0], zero], hint=f"{hint}/high")[0]
    span = to.node("Sub", [high, low], hint=f"{hint}/span")
    empty = to.node("Equal", [*span, zero], hint=f"{hint}/empty")
    factor = to.node("Where", [*empty, _scalar(b, 1), *to.node("Div", [highest, *span], hint=f"{hint}/factor")], hint=f"{hint}/factor")[0]
    exact = to.node("Mul", [*to.node("Neg", [low], hint=f"{hint}/below"), factor], hint=f"{hint}/exact")
    point = to.node("Round", to.node("Clip", [*exact, zero, highest], hint=f"{hint}/limited"), hint=f"{hint}/point")[0]
    scaled = to.node("Round", to.node("Mul", [values, factor], hint=f"{hint}/scaled"), hint=f"{hint}/whole")
    stored = to.node("Clip", [*to.node("Add", [*scaled, point], hint=f"{hint}/placed"), zero, highest], hint=f"{hint}/stored")
    scale = to.node("Div", [_scalar(b, 1), factor], hint=f"{hint}/scale")[0]
    return to.node("Sub", [*stored, point], hint=f"{hint}/steps")[0], scale


def _tensor(b: Builder, to: Emitter, values: str, hint: str) -> tuple[str, str]:
    """By DynamicQuantizeLinear."""
    stored, scale, point = to.node("DynamicQuantizeLinear", [values], 3, hint=f"{hint}/stored")
    steps = [to.node("Cast", [value], hint=f"{hint}/real", to=_FLOAT32)[0] for value in (stored, point)]
    return to.node("Sub", steps, hint=f"{hint}/steps")[0], scale


def _zero_point_of_rows(b: Builder, to: Emitter, ends: tuple[str, str, str], hint: str) -> str:
    """From the end of the range whose error is smaller, in float64: of the lowest value, the highest, and the scale."""
    low, high, scale = (to.node("Cast", [value], hint=f"{hint}/float64", to=_FLOAT64)[0] for value in ends)
    below, above = (to.node("Div", [end, scale], hint=f"{hint}/{word}")[0] for end, word in ((low, "below"), (high, "above")))
    from_low = to.node("Sub", [_scalar(b, -128, "float64"), below], hint=f"{hint}/from_low")[0]
    from_high = to.node("Sub", [_scalar(b, 127, "float64"), above], hint=f"{hint}/from_high")[0]
    errors = (
        to.node("Sub", [_scalar(b, 128, "float64"), below], hint=f"{hint}/error")[0],
        to.node("Add", [_scalar(b, 127, "float64"), above], hint=f"{hint}/error")[0],
    )
    first = to.node("Less", list(errors), hint=f"{hint}/first")
    exact = to.node("Where", [*first, from_low, from_high], hint=f"{hint}/exact")
    limited = to.node("Clip", [*exact, _scalar(b, -128, "float64"), _scalar(b, 127, "float64")], hint=f"{hint}/limited")
    nudged = to.node("Mul", [*limited, _scalar(b, AWAY, "float64")], hint=f"{hint}/nudged")
    return to.node("Cast", to.node("Round", nudged, hint=f"{hint}/point"), hint=f"{hint}/point", to=_FLOAT32)[0]


def _round_half_away(b: Builder, to: Emitter, value: str, hint: str) -> str:
    """Rounded to whole numbers, ties away from zero."""
    moved = to.node("Add", [*to.node("Abs", [value], hint=f"{hint}/magnitude"), _scalar(b, 0.5)], hint=f"{hint}/moved")
    return to.node("Mul", [*to.node("Sign", [value], hint=f"{hint}/sign"), *to.node("Floor", moved, hint=f"{hint}/whole")])[0]


def _end(b: Builder, to: Emitter, kind: str, value: str, hint: str) -> str:
    """The lowest or highest value of each row."""
    if b.opset < 18:
        return to.node(kind, [value], hint=f"{hint}/end", axes=[-1], keepdims=1)[0]
    axes = b.make_once("[-1] int64", "list", lambda: [b.const(np.array([-1], np.int64), "constant/axes")])
    return to.node(kind, [value, *axes], hint=f"{hint}/end", keepdims=1)[0]


def _scalar(b: Builder, value: float, dtype: str = "float32") -> str:
    return b.make_once(f"{float(value)!r} {dtype}", "scalar", lambda: [b.const(np.array(value, dtype), "constant/number")])[0]


_ROUNDINGS: Mapping[str, Callable[[Builder, Emitter, str, str], tuple[str, str]]] = {
    "dynamic_rows": _round_asymmetric,
    "dynamic_symmetric": _round_symmetric,
    "dynamic_reduced": _round_reduced,
    "dynamic_tensor": _tensor,
}
