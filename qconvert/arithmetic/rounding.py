"""Rounding, quantization and dequantization: from float values to stored integers and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array, integer_range, numpy_dtype
from qconvert.arithmetic.quantization import Quantization
from qconvert.errors import OptionError

__all__ = [
    "ROUNDINGS",
    "affine_range",
    "dequantize",
    "quantize",
    "round_half_away",
    "round_half_even",
    "round_half_up",
    "saturate",
    "scale_and_zero_point",
    "to_small_float",
]


#: Values that are rounded together: what is made on the way takes several times their bytes.
_PIECE = 2**16


def round_half_even(values: Any) -> Array:
    """Nearest integer, ties to even: IEEE 754's default, nearbyint, ONNX, XNNPACK. Keeps the dtype."""
    return np.asarray(np.rint(values))


def round_half_away(values: Any) -> Array:
    """Nearest integer, ties away from zero: C's round() and TFLite's TfLiteRound. Keeps the dtype."""
    values = np.asarray(values)
    whole = np.trunc(values)
    # The difference is exact, whereas adding 0.5 first turns 0.49999999999999994 into 1.
    with np.errstate(invalid="ignore"):
        return np.asarray(whole + np.copysign(np.abs(values - whole) >= 0.5, values))


def round_half_up(values: Any) -> Array:
    """Nearest integer, ties towards plus infinity: a rounding right shift. Keeps the dtype."""
    values = np.asarray(values)
    whole = np.floor(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(whole + (values - whole >= 0.5).astype(values.dtype))


#: Rounding modes by name.
ROUNDINGS: Mapping[str, Callable[[Any], Array]] = {
    "half_even": round_half_even,
    "half_away": round_half_away,
    "half_up": round_half_up,
}


def saturate(values: Any, dtype: str, limits: tuple[int, int] | None = None) -> Array:
    """Whole numbers, limited to the range of an integer dtype and stored in it. NaN becomes the smallest.

    Args:
        values: any numeric array whose elements are whole numbers or infinite.
        dtype: canonical name of the integer dtype.
        limits: a range within that of the dtype, where a quantization uses no more (Quantization.limits).
    """
    low, high = limits or integer_range(dtype)
    values = np.asarray(values)
    if values.dtype == np.float16:
        values = values.astype(np.float32)  # float16's largest value is 65504
    if values.dtype.kind == "f" and high < 2.0 ** (np.finfo(values.dtype).nmant + 1):  # the float type holds both limits exactly
        limited = np.fmax(np.minimum(values, values.dtype.type(high)), values.dtype.type(low))
        return np.asarray(limited.astype(numpy_dtype(dtype)))
    if values.dtype.kind == "f":
        # 2**63 - 1 has no float64: everything from 2**63 on is the largest integer.
        safe = np.where(values >= low, np.minimum(values, float(high)), float(low))
        top = safe >= float(high)
        wide = np.uint64 if dtype == "uint64" else np.int64
        whole = np.where(top, wide(high), np.where(top, 0, safe).astype(wide))
        return np.asarray(whole.astype(numpy_dtype(dtype)))
    own = np.iinfo(values.dtype)
    limited = np.clip(values, max(low, own.min), min(high, own.max))
    return np.asarray(limited.astype(numpy_dtype(dtype)))


def to_small_float(values: Any, dtype: str) -> Array:
    """Float values as floats of 8 or 4 bits: nearest, ties to even, saturated, as ONNX's QuantizeLinear has it. NaN stays where it exists.

    Args:
        values: floating-point array.
        dtype: canonical name of the type.
    """
    import ml_dtypes

    small = numpy_dtype(dtype)
    limits: Any = ml_dtypes.finfo(small)  # type: ignore[no-untyped-call]
    values = np.asarray(values, np.float64)
    values = np.where(np.isnan(values), 0.0, values) if dtype == "float4e2m1" else values
    top = float(limits.max)
    # A cast alone would round twice, by way of float32.
    with np.errstate(invalid="ignore"):
        exponent = np.maximum(np.frexp(np.clip(values, -top, top))[1] - 1, limits.minexp)
        step = np.ldexp(1.0, exponent - limits.nmant)
        return np.asarray(np.clip(np.rint(values / step) * step, -top, top).astype(small))


def scale_and_zero_point(quantization: Quantization, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Scale (float32) and zero point (int64) broadcast-ready for a tensor of `shape`, blocks repeated."""
    found = []
    for values in (quantization.scale, quantization.zero_point):
        if quantization.axis is None:
            found.append(values.reshape(()))
            continue
        if values.ndim == 1:
            values = values.reshape([-1 if i == quantization.axis else 1 for i in range(len(shape))])
        if quantization.block_size:
            values = np.repeat(values, min(quantization.block_size, shape[quantization.axis]), axis=quantization.axis)
            values = values.take(range(shape[quantization.axis]), axis=quantization.axis)
        found.append(values)
    return found[0], found[1]


def quantize(x: Any, quantization: Quantization, dtype: str, rounding: str = "half_even", *, offset_first: bool = False) -> Array:
    """Float values to the quantization: saturate(round(x / scale) + zero_point).

    The division happens in the dtype of `x`, so float32 data is divided in float32 as the runtimes do. NaN
    becomes the zero point.

    Args:
        x: floating-point array.
        quantization: of the result.
        dtype: canonical name of the storage dtype; floats of 8 and 4 bits take no rounding but their own (to_small_float()).
        rounding: half_even (ONNX, XNNPACK, OneFlow), half_away (TFLite's QUANTIZE, MNN, OpenVINO) or half_up.
        offset_first: adds the zero point before rounding, as OneFlow does; it matters at ties if it is odd.

    Returns:
        The stored integers, of the shape of `x`.

    Raises:
        OptionError: there is no such rounding.
    """
    if rounding not in ROUNDINGS:
        raise OptionError(
            f"the rounding is {rounding!r}, which is unknown", remedy=f"Use one of {', '.join(ROUNDINGS)}.", rule="unknown-rounding"
        )
    x = np.asarray(x)
    scale, zero_point = scale_and_zero_point(quantization, x.shape)
    on = dtype, None if dtype.startswith("float") else quantization.limits(dtype), ROUNDINGS[rounding], offset_first
    if x.size <= _PIECE or x.shape[0] == 1:
        return _round_and_saturate(x, scale, zero_point, *on)
    found = np.empty(x.shape, numpy_dtype(dtype))
    rows = max(1, _PIECE * x.shape[0] // x.size)
    for first in range(0, x.shape[0], rows):
        part = slice(first, first + rows)
        steps, points = (values[part] if values.shape[:1] == x.shape[:1] else values for values in (scale, zero_point))
        found[part] = _round_and_saturate(x[part], steps, points, *on)
    return found


def _round_and_saturate(
    x: Array,
    scale: Array,
    zero_point: Array,
    dtype: str,
    limits: tuple[int, int] | None,
    rounding: Callable[[Any], Array],
    offset_first: bool,
) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        steps = x / scale.astype(x.dtype)
    if dtype.startswith("float"):
        return to_small_float(steps, dtype)
    steps = np.where(np.isnan(steps), x.dtype.type(0), steps)
    if offset_first:
        return saturate(rounding(steps + zero_point.astype(x.dtype)), dtype, limits)
    return saturate(rounding(steps).astype(np.float64) + zero_point, dtype, limits)


def dequantize(stored: Any, quantization: Quantization) -> Array:
    """The float values, in float64: scale * (stored - zero_point), as TFLite and ONNX specify.

    Floats of 8 and 4 bits have no zero point. Exact for values up to 16 bits; an int32 bias has at most 32 + 24 significant bits,
    which may round in float64's 53.
    """
    stored = np.asarray(stored)
    scale, zero_point = scale_and_zero_point(quantization, stored.shape)
    if stored.dtype.name.startswith("float"):
        return np.asarray(stored.astype(np.float64) * scale.astype(np.float64))
    if stored.dtype.itemsize > 4 or np.broadcast_shapes(stored.shape, scale.shape) != stored.shape:
        return np.asarray((stored.astype(np.int64) - zero_point) * scale.astype(np.float64))
    found = np.array(stored, np.float64)  # in place: weights are large
    found -= zero_point
    found *= scale.astype(np.float64)
    return found


def affine_range(quantization: Quantization, dtype: str) -> tuple[Array, Array]:
    """The smallest and largest float value that the quantization holds, one each for every scale (float64)."""
    low, high = quantization.limits(dtype)
    scale = quantization.scale.astype(np.float64)
    return scale * (low - quantization.zero_point), scale * (high - quantization.zero_point)
