"""Quant and BipolarQuant: float values rounded to a quantization, and real again.

Quant computes in float32: round(clip(x / scale + zero_point)) - zero_point, times scale. Constants become the integers of just that.
Data become Quantize, a Clip where the bits leave a part of the integer type out, and Dequantize. Quantize adds the zero point after the
rounding, so that next to another zero point than 0 a value within a rounding error of a tie may become the other neighbour.
"""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.qonnx.quantizations import Stated, bits_of, numbers, read_stated, require_broadcast
from qconvert.formats.onnx.qonnx.rounding import EVEN, apply, emit_rounding, mode_of, round_values
from qconvert.formats.onnx.reading import Reading
from qconvert.formats.reading.labels import label_key
from qconvert.graph import Array, Quantization, integer_range, numpy_dtype

__all__ = ["emit_on_quantization", "read_bipolar_quant", "read_quant"]


def read_quant(r: Reading) -> None:
    """Quant(x, scale, zero_point, bit_width); attributes signed, narrow, rounding_mode."""
    found, mode, data = read_stated(r, bits_of(r, 3)), mode_of(r, "ROUND"), r.constant(0)
    if data is not None:
        _declare(r, found, _integers(data, found, mode))
    elif found.is_bipolar:
        _emit_signs(r, found, _steps(r, found))
    else:
        _emit(r, found, mode)


def read_bipolar_quant(r: Reading) -> None:
    """BipolarQuant(x, scale): the scale where x is 0 or more, else minus the scale."""
    found, data = Stated(require_broadcast(r, numbers(r, 1, "scale"))[0], np.zeros((), np.float32), (-1, 1), True, True), r.constant(0)
    if data is not None:
        _declare(r, found, np.where(np.asarray(data, np.float32) >= 0, np.float32(1), np.float32(-1)))
    else:
        _emit_signs(r, found, r.input(0))


def _integers(data: Array, found: Stated, mode: str) -> Array:
    """The whole numbers that a constant is rounded to, in float32 as qonnx computes them."""
    with np.errstate(all="ignore"):
        steps = np.asarray(data, np.float32) / found.scale + found.zero_point
        if found.is_bipolar:
            return np.where(steps >= 0, np.float32(1), np.float32(-1))
        low, high = (np.float32(limit) for limit in found.limits)
        return round_values(np.where(np.isnan(steps), found.zero_point, np.clip(steps, low, high)), mode)


def _declare(r: Reading, found: Stated, whole: Array) -> None:
    """A constant as integers with a Dequantize after them; as float values where no quantization holds them."""
    label = found.quantization(whole.shape, constant=True) if whole.shape == (r.tensor(0).shape or ()) else None
    if label is None:
        with np.errstate(all="ignore"):
            r.declare_constant((whole - found.zero_point) * found.scale)
        return
    dtype, quantization = label[0], found.with_limits(*label)
    top = np.float32(integer_range(dtype)[1])  # float32 has no 2**31 - 1
    stored = np.where(whole >= top, integer_range(dtype)[1], whole.astype(np.int64)).astype(numpy_dtype(dtype))
    key = f"{dtype}_{found.limits[1]}_{label_key(quantization)}"
    r.emit("Dequantize", [r.variant(0, key, stored, quantization)], r.outputs[:1], dtype="float32")


def _emit(r: Reading, found: Stated, mode: str) -> None:
    quantization = found.quantization(r.tensor(0).shape, constant=False)
    if quantization is None:
        low, high = (r.const(np.float32(limit), hint) for limit, hint in zip(found.limits, ("lowest", "highest"), strict=True))
        _scale_back(r, found, emit_rounding(r, apply(r, "Clip", "within", _steps(r, found), low, high), mode), r.outputs[0])
        return
    value = r.input(0)
    if mode != EVEN:
        value = r.intermediate("on_quantization", "float32")
        _scale_back(r, found, emit_rounding(r, _steps(r, found), mode), value)
    emit_on_quantization(r, value, *quantization, found.limits)


def emit_on_quantization(r: Reading, value: str, dtype: str, quantization: Quantization, limits: tuple[int, int]) -> None:
    """Appends Quantize, Clip and Dequantize of a float value, onto the integers within `limits` of a quantization; the last writes output
    0."""
    low, high = integer_range(dtype)
    if quantization.axis is not None and limits != (low, high):
        value = _clip_per_channel(r, value, quantization, limits)
        limits = low, high
    (stored,) = r.emit("Quantize", [value], [r.intermediate(dtype, dtype)], dtype=dtype, quantization=quantization)
    if limits != (low, high):
        bounds = (np.float32(limit - quantization.zero_point[0]) * quantization.scale[0] for limit in limits)
        ends = [r.const(np.asarray(bound, np.float32), hint) for bound, hint in zip(bounds, ("lowest", "highest"), strict=True)]
        (stored,) = r.emit(
            "Clip", [stored, *ends], [r.intermediate("clipped", dtype)], dtype=dtype, quantization=quantization, integers=True
        )
    r.emit("Dequantize", [stored], r.outputs[:1], dtype="float32")


def _clip_per_channel(r: Reading, value: str, quantization: Quantization, limits: tuple[int, int]) -> str:
    """Float values between bounds for each index of an axis, which have the quantization: rounding is monotone."""
    rank, axis = r.rank(0), quantization.axis
    for kind, limit in zip(("Max", "Min"), limits, strict=True):
        bounds = (np.float32(1) * (limit - quantization.zero_point)).astype(np.float32) * quantization.scale
        shaped = bounds.reshape([-1 if index == axis else 1 for index in range(rank)])
        value = apply(r, kind, kind.lower(), value, r.const(shaped, f"{kind.lower()}_bounds"))
    return value


def _steps(r: Reading, found: Stated) -> str:
    """x / scale + zero_point, decomposed."""
    steps = apply(r, "Div", "steps", r.input(0), r.const(found.scale, "scale"))
    return apply(r, "Add", "shifted", steps, r.const(found.zero_point, "zero_point")) if found.zero_point.any() else steps


def _scale_back(r: Reading, found: Stated, whole: str, result: str) -> None:
    """(whole - zero_point) * scale, decomposed."""
    if found.zero_point.any():
        whole = apply(r, "Sub", "difference", whole, r.const(found.zero_point, "zero_point"))
    r.emit("Mul", [whole, r.const(found.scale, "scale")], [result], dtype="float32")


def _emit_signs(r: Reading, found: Stated, value: str) -> None:
    """1 where the value is 0 or more, else -1; with a quantization where one holds them."""
    (is_positive,) = r.emit(
        "GreaterOrEqual", [value, r.const(np.float32(0), "zero")], [r.intermediate("is_positive", "bool")], dtype="bool"
    )
    label = found.quantization(r.tensor(0).shape, constant=False)
    if label is None or not label[1].is_per_tensor:
        ends = [r.const((np.float32(sign) - found.zero_point) * found.scale, hint) for sign, hint in ((1, "positive"), (-1, "negative"))]
        r.emit("Where", [is_positive, *ends], r.outputs[:1], dtype="float32")
        return
    dtype, quantization = label
    ends = [r.const(np.array(sign, numpy_dtype(dtype)), hint, quantization) for sign, hint in ((1, "positive"), (-1, "negative"))]
    signs = [r.intermediate(dtype, dtype)]
    r.emit("Where", [is_positive, *ends], signs, dtype=dtype, quantization=quantization, integers=True)
    r.emit("Dequantize", signs, r.outputs[:1], dtype="float32")
