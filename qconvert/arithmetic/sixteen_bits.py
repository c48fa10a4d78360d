"""TFLite's own kernels of 16-bit data, also where their 32 bits overflow. Measured equal to LiteRT's on x86 (tests/test_arithmetic.py).
Some kernels shift their steps to the left before they multiply them, in int32, and what does not fit wraps around. Scales that a
converter made of a mask of -1e9, or of an infinity that it cut off, lead there: what the kernel gives has nothing to do with the
operator then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from qconvert.arithmetic.fixed_point_functions import gemmlowp_logistic, gemmlowp_tanh
from qconvert.arithmetic.kernels import tflite_mean_multiplier
from qconvert.arithmetic.requantize import effective_scale, multiply_by_quantized_multiplier, quantize_multiplier, rescale_twice
from qconvert.arithmetic.rounding import round_half_away, saturate
from qconvert.arithmetic.storage import Array, Quantization, integer_range

#: By how many bits ADD and SUB shift 16-bit data to the left, and 8-bit data (add.cc, sub.cc).
PAIR_BITS, BYTE_PAIR_BITS = 15, 20


def pair_factors(
    sign: int, inputs: tuple[Quantization, Quantization], output: Quantization, bits: int = PAIR_BITS
) -> tuple[float, float, float]:
    """The real multipliers of both operands and of their sum, difference or product in tflite_pair().

    Args:
        sign: 1 of a sum, -1 of a difference, 0 of a product.
        inputs, output: quantizations.
        bits: by which the kernel shifts the operands of a sum to the left.
    """
    first, second = (item.step for item in inputs)
    if not sign:
        return 1.0, 1.0, float(effective_scale(inputs[0].scale[0], inputs[1].scale[0], output.scale[0], "float32"))
    common = 2 * max(first, second)
    return first / common, second / common, common / (2.0**bits * output.step)


def rounds_pairs_once(sign: int, first: Any, second: Any) -> bool:
    """Return whether TFLite's optimized kernel of int16 rounds operands once: those of an ADD that have one shape (measured, LiteRT 2.3).

    Args:
        sign: 1 of ADD, -1 of SUB, 0 of MUL.
        first, second: the shapes.
    """
    return sign > 0 and bool(first == second)


def tflite_pair(
    sign: int,
    a: Any,
    b: Any,
    inputs: tuple[Quantization, Quantization],
    output: Quantization,
    dtype: str = "int16",
    *,
    rescale: Callable[[Any, Any], Array] = rescale_twice,
) -> Array:
    """ADD, SUB and MUL of TFLite's own kernels: operands of sums are brought to a quantization of 2**-15, of 8-bit data 2**-20, the result
    to its own, each with two roundings.

    Args:
        sign: 1 of ADD, -1 of SUB, 0 of MUL.
        a, b: stored integers.
        inputs, output: quantizations, per tensor.
        dtype: of all three.
        rescale: how operands of sums are rounded.
    """
    bits = PAIR_BITS if dtype == "int16" else BYTE_PAIR_BITS
    *factors, last = pair_factors(sign, inputs, output, bits)
    x, y = (np.asarray(stored, np.int64) - item.zero_point[0] for stored, item in zip((a, b), inputs, strict=True))
    if sign:
        x, y = (rescale(steps << bits, factor) for steps, factor in zip((x, y), factors, strict=True))
    total = x + sign * y if sign else x * y
    return saturate(rescale_twice(total, last) + output.zero_point[0], dtype)


_POINTS, _EACH = 512, 128
#: Scales of data with 3 integer bits, or 4 of which the kernel takes off one, where LiteRT's default kernels are gemmlowp's
#: (SigmoidPrepare and TanhPrepare, kernels/activations.cc).
GEMMLOWP_SCALES = {"Sigmoid": (2.0**-12,), "Tanh": (2.0**-12, 2.0**-11)}
#: The exponential's table covers -10 to 0: differences from the largest are brought to steps of this.
_FINEST = 10 / 65535


def tflite_requantize(values: Array, given: Quantization, output: Quantization, dtype: str) -> tuple[Array, bool]:
    """QUANTIZE from integers to integers by TFLite's own kernel (reference/requantize.h), and whether its 32 bits overflow.

    Args:
        values: stored integers.
        given, output: quantizations, per tensor.
        dtype: of the result.
    """
    steps = values.astype(np.int64) - given.point
    scaled, overflows = _multiply_wrapped(steps, given.step / output.step)
    return saturate(scaled + output.point, dtype), overflows


def tflite_wrapped_mean(total: Array, count: int, given: Quantization, output: Quantization, dtype: str) -> tuple[Array, bool]:
    """MEAN by TFLite's own kernel (QuantizedMeanOrSum, reference/reduce.h), and whether its 32 bits overflow.

    Args:
        total: sums of stored integers.
        count: how many integers are summed.
        given, output: quantizations, per tensor.
        dtype: of the result.
    """
    steps = total.astype(np.int64) - count * given.point
    scaled, overflows = _shift_wrapped(steps, *tflite_mean_multiplier(given, output, count))
    return saturate(scaled + output.point, dtype), overflows


def tflite_softmax(values: Array, scale: float, beta: float, axis: int, precision: str = "float32") -> tuple[Array, bool]:
    """SOFTMAX of int16, whose result has the scale 2**-15, and whether its 32 bits overflow.

    Source: SoftmaxInt16 (reference/softmax.h), with its tables of exp(x) and 1 / (1 + x) (kernels/activations.cc).

    Args:
        values: stored integers.
        scale: of the data.
        beta: what they are multiplied by.
        axis: of the sums.
        precision: of scale * beta: float32 in LiteRT, which makes its tables in float64, and float64 in tflite-micro, whose tables are of
            float32.
    """
    steps = np.moveaxis(values.astype(np.int64), axis, -1)
    below, overflows = _multiply_wrapped(
        steps - steps.max(axis=-1, keepdims=True), float(effective_scale(scale, beta, 1.0, precision)) / _FINEST
    )
    shares = _look_up(np.clip(below + 32767, -32768, 32767), _exponential())
    total = shares.sum(axis=-1, keepdims=True)
    _, bits = np.frexp(total.astype(np.float64))
    reciprocal = _look_up(np.clip((((total << (31 - bits)) + 2**13) >> 14) - 3 * 2**15, -32768, 32767), _reciprocal(precision))
    right = bits.astype(np.int64) - 1
    found = np.clip((shares * reciprocal + (np.int64(1) << (right - 1))) >> right, 0, 32767)
    return np.moveaxis(found, -1, axis).astype(np.int16), overflows


def tflite_curve(values: Array, scale: float, function: str, reference: bool = False) -> tuple[Array, bool]:
    """LOGISTIC or TANH of int16, whose result has the scale 2**-15, and whether its 32 bits overflow: beyond 174,763 in real numbers.

    Source: reference/integer_ops/logistic.h and tanh.h, with 256 points of sigmoid(i / 24), and SigmoidPrepare (kernels/activations.cc).

    Args:
        values: stored integers.
        scale: of the data. At 2^-12, of TANH at 2^-11 too, the default kernels are those of gemmlowp, which take the data for numbers of 3
            integer bits. So do they from 174,763 on, where C does not define the multiplier: on x86 and in LiteRT it is the smallest int32.
        function: "Sigmoid" or "Tanh".
        reference: whether the kernels are the reference ones.
    """
    own = gemmlowp_logistic if function == "Sigmoid" else gemmlowp_tanh
    if not reference and scale in GEMMLOWP_SCALES[function]:
        return own(np.clip(values.astype(np.int64) * int(scale * 4096), -32768, 32767)), False
    factor, shift = scale * 4096 * 3, 0
    while factor <= 32767 / 2 and shift <= 30:
        factor, shift = factor * 2, shift + 1
    if factor >= 2**31:
        if not reference:
            return own(values), True
        factor = -(2.0**31)
    product = values.astype(np.int64) * int(factor) + (1 << (shift - 1) if shift else 0)
    wrapped = product.astype(np.int32).astype(np.int64)
    steps, bits = wrapped >> shift, 9 if function == "Sigmoid" else 8
    place, rest = np.abs(steps) >> bits, np.abs(steps) & (2**bits - 1)
    points = _sigmoid_points()
    near = np.minimum(place, 255)
    found = (points[near] << bits) + rest * (points[near + 1] - points[near])
    if function == "Sigmoid":
        found = np.where(place >= 255, 0x7FFF << 10, found)
        found = np.where(steps >= 0, found + 512, 2**25 - found + 511) >> 10
    else:
        found = np.where(place >= 255, 0xFFFF << 8, found)
        found = np.where(steps >= 0, found - 2**23 + 128, 2**23 - found + 127) >> 8
    return found.astype(np.int16), not np.array_equal(wrapped, product)


def tflite_table(values: Array, function: Callable[[Array], Array], scale: float, result: float) -> tuple[Array, bool]:
    """A function of int16 by lines between 513 points, such as EXP and LOG, and whether the difference of two neighbouring points, which
    has 16 bits, overflows.

    Source: LUTPopulate in float32 and LUTLookup (kernels/internal/common.h).

    Args:
        values: stored integers.
        function: of real numbers in float32.
        scale, result: of the data and of the result.
    """
    low, high, least, most = (np.float32(end) * np.float32(step) for step in (scale, result) for end in (-32768, 32767))
    step, inverse = (high - low) / np.float32(_POINTS), np.float32(65536) / (most - least)
    places = np.arange(_POINTS, dtype=np.float32)
    starts = low + places * step
    at = starts, starts + step / 2, low + (places + np.float32(1)) * step, np.array([high])
    with np.errstate(all="ignore"):
        points, middle, following, last = (function(x) * inverse for x in at)
        stored = round_half_away(points)
        off = round_half_away((following + stored.astype(np.float32)) / np.float32(2)) - round_half_away(middle)
        table = np.append(stored - round_half_away(off / 2), round_half_away(last))
        table = np.clip(table, -32768, 32767).astype(np.int64)
    steps = values.astype(np.int64) + 2**15
    differences = np.diff(table).astype(np.int16).astype(np.int64)
    found = table[steps // _EACH] + ((differences[steps // _EACH] * (steps % _EACH) + _EACH // 2) >> 7)
    return found.astype(np.int16), not np.array_equal(differences[steps // _EACH], np.diff(table)[steps // _EACH])


def _multiply_wrapped(steps: Array, factor: float) -> tuple[Array, bool]:
    """Steps by a multiplier of 32 bits, and whether the shift to the left overflows; one by 32 bits and more shifts by the rest (x86)."""
    multiplier, shift = (int(item) for item in quantize_multiplier(factor))
    return _shift_wrapped(steps, multiplier, shift)


def _shift_wrapped(steps: Array, multiplier: int, shift: int) -> tuple[Array, bool]:
    """Likewise, by a multiplier and a shift that are known."""
    left = max(shift, 0)
    wrapped = (steps << (left % 32)).astype(np.int32).astype(np.int64)
    overflows = bool(steps.any()) and (left > 31 or not np.array_equal(wrapped, steps << left))
    return multiply_by_quantized_multiplier(wrapped, multiplier, min(shift, 0)), overflows


def _look_up(values: Array, table: Array) -> Array:
    """16-bit integers on straight lines between the points of a table (LUTLookup, kernels/internal/common.h)."""
    place, rest = (values + 2**15) // _EACH, (values + 2**15) % _EACH
    base = table[place]
    return np.asarray(base + (((table[place + 1] - base) * rest + _EACH // 2) >> 7))


@cache
def _sigmoid_points() -> Array:
    """sigmoid(i / 24) at 16 bits, raised by half of what the lines between them are off in the middle."""
    exact, middle = (2.0**16 / (1 + np.exp(-(np.arange(258) + shift) / 24)) for shift in (0, 0.5))
    points = exact[:-1] + (middle[:-1] - (exact[:-1] + exact[1:]) / 2) / 2
    rounded = np.asarray(np.minimum(round_half_away(points), 65535), np.int64)
    return np.append(rounded[:255], [65535, 65535])  # the last one is that of whatever lies after


@cache
def _exponential() -> Array:
    return _table(np.exp, -10.0, 0.0)


@cache
def _reciprocal(precision: str) -> Array:
    return _table(lambda x: 1 / (1 + x), 0.0, 1.0, "float32" if precision == "float64" else "float64")


def _table(function: Callable[[Array], Array], low: float, high: float, dtype: str = "float64") -> Array:
    """513 points of a function of values up to 1, moved by half of what the lines are off in the middle (LUTPopulate, likewise)."""
    step = (high - low) / _POINTS
    points = low + np.arange(_POINTS + 1, dtype=dtype) * step
    scaled, middle = function(points) * 2**15, function(points[:-1] + step / 2) * 2**15
    stored = round_half_away(scaled)
    off = round_half_away((scaled[1:] + stored[:-1]) / 2) - round_half_away(middle)
    moved = np.append(stored[:-1] - round_half_away(off / 2), stored[-1])
    return np.asarray(np.clip(moved, *integer_range("int16")), np.int64)
