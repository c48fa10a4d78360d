"""The nodes of QONNX, Quant, BipolarQuant and Trunc, and their rounding modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic.float_kernels import dequantize_float32
from qconvert.arithmetic.rounding import round_half_away, round_half_even
from qconvert.formats.onnx.qonnx.quantizations import Stated, bits_of, is_positive, limits_of, numbers, read_stated, require_broadcast
from qconvert.formats.onnx.reading import NotCoveredError, Reading
from qconvert.formats.reading.quantizations import label_key
from qconvert.graph import Array, Quantization, integer_range, numpy_dtype

EVEN = "HALF_EVEN"
_OTHER_NAMES = {"ROUND": EVEN}


def _half_down(values: Array) -> Any:
    return np.sign(values) * np.ceil(np.abs(values) - values.dtype.type(0.5))


#: Rounding mode -> what it makes of values; the operator that does so, and what is added to magnitudes before it where it rounds these.
_ROUNDINGS: Mapping[str, tuple[Callable[[Array], Any], str, float | None]] = {
    EVEN: (round_half_even, "Round", None),
    "CEIL": (np.ceil, "Ceil", None),
    "FLOOR": (np.floor, "Floor", None),
    "UP": (lambda values: np.copysign(np.ceil(np.abs(values)), values), "Ceil", 0.0),
    "DOWN": (np.trunc, "Floor", 0.0),
    "HALF_UP": (round_half_away, "Floor", 0.5),
    "HALF_DOWN": (_half_down, "Ceil", -0.5),
}


def mode_of(r: Reading, default: str) -> str:
    """The rounding mode that a node states; raises NotCoveredError for one that qonnx does not have."""
    stated = str(r.attribute("rounding_mode", default)).upper()
    mode = _OTHER_NAMES.get(stated, stated)
    if mode not in _ROUNDINGS:
        raise NotCoveredError(f"the rounding mode {stated}")
    return mode


def rounding_of(mode: str) -> tuple[str, float | None]:
    """Return the operator that rounds in a mode, and what is added to magnitudes before it; None where it rounds the values themselves."""
    _, kind, offset = _ROUNDINGS[_OTHER_NAMES.get(mode, mode)]
    return kind, offset


def emit_rounding(r: Reading, value: str, mode: str) -> str:
    """Appends the operators that round the float value `value`; returns the result's name."""
    kind, offset = rounding_of(mode)
    if offset is None:
        return apply(r, kind, "rounded", value)
    magnitude = apply(r, "Abs", "magnitude", value)
    if offset:
        magnitude = apply(r, "Add", "offset", magnitude, r.const(np.float32(offset), "half"))
    return apply(r, "Mul", "rounded", apply(r, kind, "whole", magnitude), apply(r, "Sign", "sign", value))


def apply(r: Reading, kind: str, hint: str, *inputs: str) -> str:
    """Appends an operator in float; returns its result's name, which ends in `hint`."""
    return r.emit_inner(kind, inputs, hint, "float32")


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
        return np.asarray(_ROUNDINGS[mode][0](np.where(np.isnan(steps), found.zero_point, np.clip(steps, low, high))))


def _declare(r: Reading, found: Stated, whole: Array) -> None:
    """A constant as integers with a Dequantize after them; as float values where no quantization holds them."""
    label = found.quantization(whole.shape, constant=True) if whole.shape == (r.tensor(0).shape or ()) else None
    if label is None:
        with np.errstate(all="ignore"):
            r.declare_constant((whole - found.zero_point) * found.scale)
        return
    dtype, quantization = label[0], label[1].with_limits(label[0], *found.limits)
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
    stored = r.emit_inner("Quantize", [value], dtype, dtype, quantization=quantization)
    if limits != (low, high):
        bounds = zip(limits, ("lowest", "highest"), strict=True)
        ends = [r.const(dequantize_float32(limit, quantization), hint) for limit, hint in bounds]
        stored = r.emit_inner("Clip", [stored, *ends], "clipped", quantization=quantization, integers=True)
    r.emit("Dequantize", [stored], r.outputs[:1], dtype="float32")


def _clip_per_channel(r: Reading, value: str, quantization: Quantization, limits: tuple[int, int]) -> str:
    """Float values between bounds for each index of an axis, which have the quantization: rounding is monotone."""
    rank, axis = r.rank(0), quantization.axis
    for kind, limit in zip(("Max", "Min"), limits, strict=True):
        bounds = (limit - quantization.zero_point).astype(np.float32) * quantization.scale
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
    is_positive = r.emit_inner("GreaterOrEqual", [value, r.const(np.float32(0), "zero")], "is_positive", "bool")
    label = found.quantization(r.tensor(0).shape, constant=False)
    if label is None or not label[1].is_per_tensor:
        ends = [r.const((np.float32(sign) - found.zero_point) * found.scale, hint) for sign, hint in ((1, "positive"), (-1, "negative"))]
        r.emit("Where", [is_positive, *ends], r.outputs[:1], dtype="float32")
        return
    dtype, quantization = label
    ends = [r.const(np.array(sign, numpy_dtype(dtype)), hint, quantization) for sign, hint in ((1, "positive"), (-1, "negative"))]
    signs = r.emit_inner("Where", [is_positive, *ends], dtype, dtype, quantization=quantization, integers=True)
    r.emit("Dequantize", [signs], r.outputs[:1], dtype="float32")


def read_trunc(r: Reading) -> None:
    """Trunc(x, scale, zero_point, in_bits, out_bits) of version 1, (x, scale, zero_point, in_bits, out_scale, out_bits) of version 2.

    round(x / scale + zero_point) / 2**k, rounded again by the mode. Version 1 has k = in_bits - out_bits and scales back by what it had;
    it limits nothing, so its result stays in float. Version 2 has 2**k = out_scale / scale, limits to out_bits, and its
    result has the quantization of out_scale.
    """
    scale, points = require_broadcast(r, numbers(r, 1, "scale"), numbers(r, 2, "zero point"))
    in_bits, mode = bits_of(r, 3), mode_of(r, "FLOOR")
    if not is_positive(scale):
        raise NotCoveredError("scales that are not positive")
    is_second, signed = r.has(5), bool(r.attribute("signed", 1))
    if is_second:
        out_scale = require_broadcast(r, numbers(r, 4, "scale of the result"), scale, points)[0]
        if not is_positive(out_scale):
            raise NotCoveredError("scales of the result that are not positive")
        divisor = np.asarray(np.float32(2) ** np.rint(np.log2(out_scale / scale)))
        out_points = points / divisor
        limits = limits_of(bits_of(r, 5), signed, bool(r.attribute("narrow", 0)))
    else:
        divisor, out_points, out_scale, limits = np.array(2.0 ** (in_bits - bits_of(r, 4)), np.float32), points, scale, (0, 0)
    whole_steps = apply(r, "Round", "whole_steps", _steps(r, Stated(scale, points, limits, signed)))
    fraction = apply(r, "Div", "divided", whole_steps, r.const(np.asarray(divisor, np.float32), "divisor"))
    if is_second:
        ends = [r.const(np.float32(limit), hint) for limit, hint in zip(limits, ("fewest", "most"), strict=True)]
        fraction = apply(r, "Clip", "within", fraction, *ends)
    whole, found = emit_rounding(r, fraction, mode), Stated(out_scale, np.asarray(out_points, np.float32), limits, signed)
    quantization = found.quantization(r.tensor(0).shape, constant=False) if limits[0] < limits[1] else None
    if quantization is None:
        _scale_back(r, found, whole, r.outputs[0])
        return
    value = r.intermediate("on_quantization", "float32")
    _scale_back(r, found, whole, value)
    emit_on_quantization(r, value, *quantization, limits)
