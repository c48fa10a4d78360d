"""From float values to stored integers and back: rounding, quantization and dequantization, functions of one 8-bit tensor as tables of 256
integers, and the rounding of real data at each run (dynamic range; TFLite calls it hybrid).

Sources of the last: XNNPACK's qd8 rounding (xnn_f32_qd8_asymmetric_quantization_params, f32-qs8-vcvt), TFLite's
PortableSymmetricQuantizeFloats and PortableAsymmetricQuantizeFloats (portable_tensor_utils.cc), ONNX DynamicQuantizeLinear-11. All compute
in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array, Quantization, integer_range, numpy_dtype
from qconvert.errors import require_word

#: Values that are rounded together: what is made on the way takes several times their bytes.
_PIECE = 2**16


def fused_multiply_add(x: Any, y: Any, z: Any) -> Array:
    """x * y + z rounded once to float32: the product of two float32 is exact in float64."""
    return np.asarray((np.asarray(x, np.float64) * np.asarray(y, np.float64) + np.asarray(z, np.float64)).astype(np.float32))


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
    require_word("the rounding", rounding, ROUNDINGS, "unknown-rounding")
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


def subtract_zero_points(stored: Array, quantization: Quantization) -> Array:
    """Return stored integers less their zero points, in int64."""
    return np.asarray(stored.astype(np.int64) - scale_and_zero_point(quantization, stored.shape)[1])


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


def lookup_table(
    function: Callable[[Array], Any],
    given: Quantization,
    output: Quantization,
    dtype: str = "int8",
    output_dtype: str = "",
    rounding: str = "half_even",
    precision: str = "float64",
) -> Array:
    """The stored result of an elementwise function for each stored integer of its data, the lowest first.

    table[code - lowest] = quantize(function(dequantize(code))). Whatever the function, 256 codes are all that there is, so nothing is lost.
    Sources: TFLite, LUTPopulate (kernels/internal/common.h: half_away, float32) and TVM, relay/qnn/op/canonicalizations.py.
    NaN becomes the zero point, infinity the end of the type. TFLite multiplies by the reciprocal of the result's scale: its ties may
    fall to either side.

    Args:
        function: of an array of real numbers.
        given, output: quantizations of data and result, per tensor.
        dtype: of the data; 16 bits give 65,536 values.
        output_dtype: of the result, by default the same.
        rounding: one of ROUNDINGS.
        precision: in which the function and the quotient are computed.
    """
    low, high = integer_range(dtype)
    codes = np.arange(low, high + 1).astype(numpy_dtype(dtype))
    with np.errstate(all="ignore"):
        values = np.asarray(function(dequantize(codes, given).astype(precision)), precision)
    return quantize(values, output, output_dtype or dtype, rounding)


#: A value nearer than this to the middle between two steps may fall to either side where kernels take a reciprocal for a division.
_NEAR = 1e-4
_F32 = np.float32


def dynamic_steps(x: Array, axes: Sequence[int], rounding: str) -> tuple[Array, Array, Array]:
    """Data as whole steps times a scale, and by how many steps a kernel that rounds a tie otherwise may differ from that.

    Args:
        x: float32.
        axes: over which one range is taken; none stands for a range of its own for each value.
        rounding: one of DYNAMIC_ROUNDINGS.

    Returns:
        Integers less the zero point, their scale (of size 1 along `axes`), and 1 where a value, or the end of its range, is near a tie,
        else 0; all float64.
    """
    x = np.asarray(x, np.float32)
    span = tuple(axes)
    low, high = (np.asarray(end(x, axis=span, keepdims=True, initial=0), np.float32) for end in (np.min, np.max))
    with np.errstate(all="ignore"):
        steps, scale, scaled, at_end = DYNAMIC_ROUNDINGS[rounding](x, low, high)
        near = _is_near_tie(scaled)
    return steps.astype(np.float64), scale.astype(np.float64), (near | at_end).astype(np.float64)


def _is_near_tie(x: Array) -> Array:
    return np.asarray(np.abs(np.abs(x - np.floor(x)) - 0.5) <= _NEAR)


_Rounded = tuple[Array, Array, Array, Array]


def _clip_steps(scaled: Array, exact_point: Array, lowest: int, highest: int) -> tuple[Array, Array]:
    """Rounded steps, cut off at the ends of the type; and where they are cut off, if the zero point itself is near a tie."""
    zero_point = np.rint(np.clip(exact_point, lowest, highest))
    steps = np.clip(np.rint(scaled) + zero_point, lowest, highest)
    return steps - zero_point, _is_near_tie(exact_point) & ((steps <= lowest) | (steps >= highest))


def _xnnpack(x: Array, low: Array, high: Array) -> _Rounded:
    """The zero point from the end of the range whose error is smaller, rounded to even."""
    scale = np.where(low == high, _F32(1), _F32(255) / (high - low)).astype(np.float32)
    below, above = low * scale, high * scale
    exact = np.where((_F32(-128) + below) + (_F32(127) + above) > 0, _F32(-128) - below, _F32(127) - above)
    scaled = x * scale
    steps, at_end = _clip_steps(scaled, exact, -128, 127)
    return steps, _F32(1) / scale, scaled, at_end


def _symmetric(x: Array, low: Array, high: Array) -> _Rounded:
    """-127 to 127 for the largest magnitude, ties away from zero."""
    largest = np.maximum(-low, high)
    scaled = (x * np.where(largest == 0, _F32(0), _F32(127) / largest)).astype(np.float32)
    steps = np.clip(np.trunc(scaled + np.copysign(_F32(0.5), scaled)), -127, 127)
    return steps, np.where(largest == 0, _F32(1), largest / _F32(127)).astype(np.float32), scaled, np.zeros(x.shape, bool)


def _rows(x: Array, low: Array, high: Array) -> _Rounded:
    """As _xnnpack(), but by a scale in float32 and the zero point in float64, the sum of both rounded with ties away from zero."""
    with np.errstate(all="ignore"):
        scale = np.where(low == high, _F32(1), (high - low) / _F32(255)).astype(np.float32)
        below, above = (end.astype(np.float64) / scale for end in (low, high))
        exact = np.where(128 + np.abs(below) < 127 + np.abs(above), -128 - below, 127 - above)
        point = np.where(low == high, 0, round_half_away(np.clip(exact, -128, 127))).astype(np.float32)
        scaled = x * (_F32(1) / scale)
        steps = np.clip(round_half_away((point + scaled).astype(np.float64)), -128, 127)
    return steps - point, scale, scaled, _is_near_tie(exact) & ((steps <= -128) | (steps >= 127))


def _reduced_range(x: Array, low: Array, high: Array) -> _Rounded:
    """0 to 127, by the reciprocal of the scale, ties to even: PyTorch's reduce_range (ATen/native/quantized/cpu/QuantUtils.h)."""
    scale = np.where(low == high, _F32(1), _F32(127) / (high - low)).astype(np.float32)
    exact, scaled = -low * scale, x * scale
    steps, at_end = _clip_steps(scaled, exact, 0, 127)
    return steps, _F32(1) / scale, scaled, at_end


def _tensor(x: Array, low: Array, high: Array) -> _Rounded:
    """DynamicQuantizeLinear: 0 to 255, ties to even; all zeros have the scale 1, as in onnxruntime."""
    scale = np.where(low == high, _F32(1), (high - low) / _F32(255)).astype(np.float32)
    exact = -low / scale
    scaled = x / scale
    steps, at_end = _clip_steps(scaled, exact, 0, 255)
    return steps, scale, scaled, at_end


#: By the values of the attribute `arithmetic`; see operators/attributes.py.
DYNAMIC_ROUNDINGS: Mapping[str, Callable[[Array, Array, Array], _Rounded]] = {
    "dynamic": _xnnpack,
    "dynamic_images": _xnnpack,
    "dynamic_symmetric": _symmetric,
    "dynamic_rows": _rows,
    "dynamic_tensor": _tensor,
    "dynamic_reduced": _reduced_range,
}
#: How many steps the range of the data has in each of them at least, from its lowest value or 0 to its highest or 0.
FEWEST_DYNAMIC_STEPS = 127
#: Those by the range of the whole tensor, which TFLite has no kernel for.
OF_WHOLE_TENSORS = frozenset(("dynamic_tensor", "dynamic_reduced"))
#: Those of TFLite's recurrent operators, which know rows alone.
OF_ROWS = ("dynamic_symmetric", "dynamic_rows")
