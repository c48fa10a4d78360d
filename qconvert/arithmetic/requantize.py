"""Requantization: from an int32 accumulator to the stored output, by fixed-point multipliers, at once or step by step, and the proof of
where two requantizations differ.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer- Arithmetic-Only Inference" (arXiv 1712.05877),
section 2.2, for the multiplier; gemmlowp, fixedpoint/fixedpoint.h, and TFLite, kernels/internal/common.h, for two roundings, the second
away from zero; TFLITE_SINGLE_ROUNDING there for one, ties up. TVM's qnn.requantize has one as well (relay/qnn/utils.cc, computed in int64):
UPWARD with ties up, TONEAREST with ties away from zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic.rounding import round_half_away, round_half_even, saturate
from qconvert.arithmetic.storage import Array
from qconvert.errors import OptionError, require_word


def quantize_multiplier(multiplier: Any) -> tuple[Array, Array]:
    """A positive real multiplier as (int32 in [2**30, 2**31), shift): multiplier ~ integer * 2**(shift - 31).

    TFLite's QuantizeMultiplier (quantization_util.cc): frexp, then the mantissa rounded half away from zero;
    multipliers below 2**-32 become 0.

    Args:
        multiplier: float64, any shape.

    Returns:
        Integer mantissa (int32) and shift (int64; negative is a shift to the right), both of the shape of
        `multiplier`.
    """
    mantissa, exponent = np.frexp(np.asarray(multiplier, np.float64))
    fixed = round_half_away(mantissa * 2.0**31).astype(np.int64)
    full = fixed == 2**31
    fixed, shift = np.where(full, 2**30, fixed), np.asarray(exponent, np.int64) + full
    lost = shift < -31
    return np.where(lost, 0, fixed).astype(np.int32), np.where(lost, 0, shift)


def high_product(a: Any, b: Any, width: int = 31) -> Array:
    """gemmlowp's SaturatingRoundingDoublingHighMul (fixedpoint.h): a * b / 2**width, ties up, of int32, or of int16 with the width 15; the
    lowest number squared saturates.

    gemmlowp adds a nudge that depends on the sign and then divides towards zero, which is the same as
    rounding ties up.
    """
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    return np.asarray(np.minimum((product + (1 << (width - 1))) >> width, (1 << width) - 1))


def rounding_divide_by_pot(x: Any, exponent: Any) -> Array:
    """x / 2**exponent, ties away from zero (gemmlowp, fixedpoint.h). Integers; the exponent is 0 or more."""
    x, exponent = np.asarray(x, np.int64), np.asarray(exponent, np.int64)
    mask = (np.int64(1) << exponent) - 1
    threshold = (mask >> 1) + (x < 0)
    return np.asarray((x >> exponent) + ((x & mask) > threshold))


def shift_half_up(x: Array, exponent: Any) -> Array:
    """x / 2**exponent, ties up: a right shift after adding half."""
    exponent = np.asarray(exponent, np.int64)
    return np.asarray((x + ((np.int64(1) << exponent) >> 1)) >> exponent)


def multiply_by_quantized_multiplier(x: Any, multiplier: Any, shift: Any) -> Array:
    """x * multiplier * 2**(shift - 31), rounded twice: TFLite's MultiplyByQuantizedMultiplier.

    Args:
        x: integers; x * 2**max(shift, 0) must fit in int32.
        multiplier: from quantize_multiplier.
        shift: likewise.
    """
    x, shift = np.asarray(x, np.int64), np.asarray(shift, np.int64)
    high = high_product(x << np.maximum(shift, 0), multiplier)
    return rounding_divide_by_pot(high, np.maximum(-shift, 0))


def rescale_twice(acc: Any, scale: Any) -> Array:
    """Integers times a factor, by its 31-bit multiplier and a shift, each rounded: TFLite's double rounding."""
    return multiply_by_quantized_multiplier(acc, *quantize_multiplier(scale))


def _ruy(acc: Array, scale: Array) -> Array:
    multiplier, shift = quantize_multiplier(scale)
    high = high_product(acc << np.maximum(shift, 0), multiplier)
    return shift_half_up(high, np.maximum(-shift, 0))


def rescale_once(acc: Array, scale: Any) -> Array:
    """Integers times a factor, by its 31-bit multiplier and one shift with ties up: gemmlowp's rounding in one step."""
    multiplier, shift = quantize_multiplier(scale)
    return shift_half_up(acc * multiplier.astype(np.int64), 31 - shift)


def rescale_down(acc: Array, scale: Any) -> Array:
    """Integers times a factor, by its 31-bit multiplier, rounded, and a shift that rounds down, as vectors of NEON (vshlq_s32)."""
    multiplier, shift = quantize_multiplier(scale)
    return np.asarray(high_product(acc, multiplier) >> np.maximum(-shift, 0))


def short_multipliers(factors: Any) -> tuple[Array, Array]:
    """Positive real multipliers as (integer below 2**15, right shift): what TFLite makes of them for sums of 64 bits."""
    fixed, shift = quantize_multiplier(factors)
    wide = fixed.astype(np.int64)
    return np.where(wide < 0x7FFF0000, (wide + (1 << 15)) >> 16, 0x7FFF), 15 - shift


def _short_multiplier(acc: Array, scale: Array) -> Array:
    multiplier, bits = short_multipliers(scale)
    return shift_half_up(acc * multiplier, bits)


def _single_rounding_away(acc: Array, scale: Array) -> Array:
    multiplier, shift = quantize_multiplier(scale)
    product = acc * multiplier.astype(np.int64)
    return np.asarray(np.sign(product) * shift_half_up(np.abs(product), 31 - shift))


def _float64_away(acc: Array, scale: Array) -> Array:
    return round_half_away(acc.astype(np.float64) * scale).astype(np.int64)


def _float32_even(acc: Array, scale: Array) -> Array:
    return round_half_even(acc.astype(np.float32) * scale.astype(np.float32)).astype(np.int64)


def _float64_even(acc: Array, scale: Array) -> Array:
    return round_half_even(acc.astype(np.float64) * scale).astype(np.int64)


#: How kernels turn an accumulator into steps of the output: name -> (int64 accumulator, float64 scale) -> int64.
#:   tflite_double_rounding  TFLite's reference convolutions, MUL, MEAN: high product, then a shift, ties away
#:   tflite_ruy              ruy's AVX paths and optimised depthwise: high product, then a shift, ties up
#:   tflite_16_bits          TFLite's sums of 64 bits of 16-bit data: 16 bits of the multiplier, one shift, ties up
#:                           (MultiplyByQuantizedMultiplier of int64_t, common.cc)
#:   tflite_single_rounding  ruy's portable path, and TFLITE_SINGLE_ROUNDING: one shift, ties up
#:   tvm_to_nearest          TVM's qnn.requantize in int64 with TONEAREST (UPWARD is the one above): one shift, ties away
#:   tflite_float            TFLite's reference FULLY_CONNECTED: float64 product, ties away
#:   single_float32          XNNPACK, onnxruntime's QLinear operators, fbgemm, qnnpack: float32 product, ties even
#:   exact                   float64 product, ties even: the meaning of the canonical graph
REQUANTIZERS: Mapping[str, Callable[[Array, Array], Array]] = {
    "tflite_double_rounding": rescale_twice,
    "tflite_ruy": _ruy,
    "tflite_16_bits": _short_multiplier,
    "tflite_single_rounding": rescale_once,
    "tvm_to_nearest": _single_rounding_away,
    "tflite_float": _float64_away,
    "single_float32": _float32_even,
    "exact": _float64_even,
}


def requantize(
    acc: Any,
    scale: Any,
    zero_point: int,
    dtype: str,
    kernel: str = "single_float32",
) -> Array:
    """The stored output of an integer operator: clamp(round(acc * scale) + zero_point).

    Args:
        acc: integer accumulator.
        scale: input scales over output scale, broadcast against `acc`; see effective_scale.
        zero_point: of the output.
        dtype: canonical name of the output's dtype.
        kernel: a key of REQUANTIZERS.

    Raises:
        OptionError: there is no such kernel.
    """
    require_word("the requantizer", kernel, REQUANTIZERS, "unknown-requantizer")
    steps = REQUANTIZERS[kernel](np.asarray(acc, np.int64), np.asarray(scale, np.float64)) + zero_point
    return saturate(steps, dtype)


def effective_scale(first: Any, second: Any, output: Any, precision: str = "float64") -> Array:
    """first * second / output, the real multiplier of a product of two quantized tensors, as float64.

    Args:
        first: float32 scale of the input.
        second: float32 scale or scales of the other factor, such as a weight's.
        output: float32 scale of the output.
        precision: float64 for TFLite's convolutions of int8 (PopulateConvolutionQuantizationParams); float32 for XNNPACK, onnxruntime and
            TFLite's MUL, which round after each step; "product" where the first step alone is of float32, as in TFLite's convolutions of
            uint8 (GetQuantizedConvolutionMultipler); "reciprocal" for PyTorch's qnnpack, whose float32 product is multiplied by
            1 / output (generate_requantization_scales, QnnpackUtils.h).
    """
    if precision == "reciprocal":
        inverse = np.float32(1) / np.asarray(output, np.float32)
        return np.asarray(np.asarray(first, np.float32) * np.asarray(second, np.float32) * inverse, np.float64)
    steps = ("float32", "float64") if precision == "product" else (precision, precision)
    a, b = (np.asarray(value, np.float32).astype(steps[0]) for value in (first, second))
    return np.asarray((a * b).astype(steps[1]) / np.asarray(output, np.float32).astype(steps[1]), np.float64)


def predicted_rate_double_rounding(scales: Any) -> float:
    """The share of outputs in which TFLite's double rounding is expected to differ, by 1, from a single
    rounding.

    Closed form: with e the right shift and v = acc * scale, double rounding gives sign(v) * floor(|v| + 1/2 +
    2**-(e+1)), so a fraction 2**-(e+1) of the unsaturated elements lies between the two thresholds.

    Args:
        scales: the real multipliers, one for each channel.
    """
    _, shift = quantize_multiplier(np.atleast_1d(scales))
    return float(np.mean(2.0 ** -(np.maximum(-shift, 0) + 1.0)))


#: "single": one shift, ties up. "away": one shift, ties away from zero. "double": the high half of a product, ties up, then a shift, ties
#: away from zero.
FIXED_POINT_ROUNDINGS = ("single", "away", "double")
_BITS = 31
_Requantized = Callable[[Array], Array]


class FixedPoint(NamedTuple):
    """What an accumulator goes through, in int64: times `multiplier`, plus `half`, and shifted to the right by `shift`; then, if there
    are any, plus `second_half`, and shifted by `second_shift`. Where ties fall away from zero, what is negative is made less by 1 before.

    All are int64, of the shape of the scales that they are made of.

    Attributes:
        multiplier: with the shift to the left of multipliers above 1 in it, where there are two roundings.
        half: half of a step of the first shift.
        shift: from 1 to 62.
        second_half, second_shift: likewise of the second, 0 where there is none; its ties fall away from zero.
        is_away: whether those of the first do.
    """

    multiplier: Array
    half: Array
    shift: Array
    second_half: Array
    second_shift: Array
    is_away: bool = False

    @classmethod
    def of(cls, scale: Any, rounding: str = "single") -> FixedPoint:
        """The steps for real multipliers.

        Args:
            scale: input scales over output scale, float64, any shape; see effective_scale().
            rounding: one of FIXED_POINT_ROUNDINGS.

        Raises:
            OptionError: there is no such rounding, or a multiplier is no positive number below 2**30.
        """
        scale = np.asarray(scale, np.float64)
        if rounding not in FIXED_POINT_ROUNDINGS:
            raise OptionError(
                f"the rounding of fixed point is {rounding!r}, which is unknown",
                remedy=f"Use {' or '.join(FIXED_POINT_ROUNDINGS)}.",
                rule="unknown-rounding",
            )
        if not ((scale > 0) & (scale < 2.0 ** (_BITS - 1))).all():
            raise OptionError(
                f"the multiplier is {scale}, which has no fixed-point form",
                remedy="Use positive scales whose quotient is below 2**30.",
                rule="multiplier-out-of-range",
            )
        found, exponent = quantize_multiplier(scale)
        multiplier, none = found.astype(np.int64), np.zeros(scale.shape, np.int64)
        if rounding != "double":
            shift = _BITS - exponent
            return cls(multiplier, np.int64(1) << (shift - 1), shift, none, none, rounding == "away")
        second = np.maximum(-exponent, 0)
        whole = none + _BITS
        return cls(multiplier << np.maximum(exponent, 0), np.int64(1) << (whole - 1), whole, (np.int64(1) << second) >> 1, second)

    def __call__(self, acc: Any) -> Array:
        """Steps of the output, int64, of accumulators, which broadcast against the multipliers. The zero point is still to be added."""
        product = np.asarray(acc, np.int64) * self.multiplier
        steps = np.asarray((product - (self.is_away & (product < 0)) + self.half) >> self.shift)
        second = (steps + self.second_half - ((steps < 0) & (self.second_shift > 0))) >> self.second_shift
        return np.asarray(second)

    @property
    def largest(self) -> int:
        """The largest magnitude of an accumulator for which no product leaves int64, and none that kernels shift to the left int32."""
        half, multiplier = int(self.half.max(initial=1)), int(self.multiplier.max(initial=1))
        left = max(0, multiplier.bit_length() - _BITS)
        return min((1 << _BITS) >> left, (2**63 - 1 - half) // max(1, multiplier))


class Difference(NamedTuple):
    """How two requantizations compare over every accumulator.

    Attributes:
        differing: accumulators, of all channels, with another integer.
        total: accumulators between the ends of the results' range, where not all are one limit.
        examples: for the first few channels that differ: (channel, accumulator, the first's integer, the second's).
    """

    differing: int
    total: int
    examples: tuple[tuple[int, int, int, int], ...] = ()


def compare_requantizations(
    first: _Requantized, second: _Requantized, limits: tuple[int, int], low: Any, high: Any, scale: Any
) -> Difference:
    """Compares two requantizations for every accumulator of every channel, without trying them all where they are many.

    Both never fall, so each is its thresholds: for each integer that is not the last, the accumulator where the next one begins. Where
    these are equal, at most 255 of 8 bits, all results are. The search stops only where the function itself confirms a threshold:
    below the integer at one accumulator, and above it at the next.

    Args:
        first, second: accumulators, int64, of shape (channels, n) -> steps with the zero point, not yet limited; neither falls.
        limits: the lowest and highest integer of the result.
        low, high: the range of accumulators, inclusive: int64, one or one for each channel.
        scale: where a threshold lies about: steps for an accumulator, one or one for each channel; only the speed depends on it.
    """
    if limits[0] == limits[1]:  # as a Relu leaves them where the zero point is the largest integer
        return Difference(0, 0)
    scale = np.atleast_1d(np.asarray(scale, np.float64)).reshape(-1, 1)
    low, high = (np.broadcast_to(np.asarray(end, np.int64).reshape(-1, 1), scale.shape) for end in (low, high))
    if int((high - low).max()) <= limits[1] - limits[0]:
        return _compare_exhaustively(first, second, limits, low, high)
    steps = np.arange(limits[0], limits[1], dtype=np.int64)[None, :]
    zero = first(np.zeros(scale.shape, np.int64))
    guess = np.clip((steps - zero + 0.5) / scale, low, high + 1).astype(np.int64)
    found = [_thresholds(function, steps, low, high, guess) for function in (first, second)]
    apart = np.abs(found[0] - found[1])
    examples = []
    for channel in np.flatnonzero(apart.any(axis=1))[:4]:
        place = int(np.argmax(apart[channel] > 0))
        acc = np.broadcast_to(min(item[channel, place] for item in found), scale.shape)
        a, b = (int(np.clip(function(acc), *limits)[channel, 0]) for function in (first, second))
        examples.append((int(channel), int(acc[0, 0]), a, b))
    return Difference(int(apart.sum()), int((found[0][:, -1] - found[0][:, 0]).sum()), tuple(examples))


def _compare_exhaustively(
    first: Callable[[Array], Array], second: Callable[[Array], Array], limits: tuple[int, int], low: Array, high: Array
) -> Difference:
    """The same by trying every accumulator."""
    acc = low + np.arange(int((high - low).max()) + 1)[None, :]
    a, b = (np.clip(function(np.minimum(acc, high)), *limits) for function in (first, second))
    apart = np.where(acc <= high, np.abs(a - b), 0)
    places = [(int(channel), int(np.argmax(apart[channel] > 0))) for channel in np.flatnonzero(apart.any(axis=1))[:4]]
    examples = tuple((channel, int(acc[channel, i]), int(a[channel, i]), int(b[channel, i])) for channel, i in places)
    inside = (acc <= high) & (a > limits[0]) & (a < limits[1])
    return Difference(int(apart.sum()), int(inside.sum()), examples)


def _thresholds(function: _Requantized, steps: Array, low: Array, high: Array, guess: Array) -> Array:
    """For each step the first accumulator from `low` on beyond it, or high + 1; bisected between two that enclose it."""
    below, above = low - 1 + 0 * guess, high + 1 + 0 * guess  # the step is not passed at `below`, and is at `above`
    width = 1
    while True:  # enclose
        left, right = np.maximum(guess - width, below), np.minimum(guess + width, above)
        beyond = (right > high) | (function(np.clip(right, low, high)) > steps)
        short = (left < low) | (function(np.clip(left, low, high)) <= steps)
        if (beyond & short).all() or width > 2**33:
            break
        width *= 16
    below, above = np.where(short, left, below), np.where(beyond, right, above)
    while (above - below > 1).any():
        middle = below + ((above - below) >> 1)
        passed = function(np.clip(middle, low, high)) > steps
        passed = np.where(middle < low, False, np.where(middle > high, True, passed))
        below, above = np.where(passed, below, middle), np.where(passed, middle, above)
    return np.asarray(above)
