"""Fixed-point multipliers and requantization: from an int32 accumulator to the stored output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.arithmetic.rounding import round_half_away, round_half_even, saturate
from qconvert.errors import OptionError

__all__ = [
    "REQUANTIZERS",
    "effective_scale",
    "multiply_by_quantized_multiplier",
    "predicted_rate_double_rounding",
    "quantize_multiplier",
    "requantize",
    "rounding_divide_by_pot",
    "saturating_rounding_doubling_high_mul",
    "shift_half_up",
]


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


def saturating_rounding_doubling_high_mul(a: Any, b: Any) -> Array:
    """The high 32 bits of 2*a*b, rounded, for int32 a and b; INT32_MIN squared saturates (gemmlowp,
    fixedpoint.h).

    gemmlowp adds a nudge that depends on the sign and then divides towards zero, which is the same as
    rounding ties up.
    """
    a, b = np.asarray(a, np.int64), np.asarray(b, np.int64)
    high = (a * b + 2**30) >> 31
    return np.asarray(np.minimum(high, 2**31 - 1))


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
    high = saturating_rounding_doubling_high_mul(x << np.maximum(shift, 0), multiplier)
    return rounding_divide_by_pot(high, np.maximum(-shift, 0))


def _double_rounding(acc: Array, scale: Array) -> Array:
    return multiply_by_quantized_multiplier(acc, *quantize_multiplier(scale))


def _ruy(acc: Array, scale: Array) -> Array:
    multiplier, shift = quantize_multiplier(scale)
    high = saturating_rounding_doubling_high_mul(acc << np.maximum(shift, 0), multiplier)
    return shift_half_up(high, np.maximum(-shift, 0))


def _single_rounding(acc: Array, scale: Array) -> Array:
    multiplier, shift = quantize_multiplier(scale)
    return shift_half_up(acc * multiplier.astype(np.int64), 31 - shift)


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
#:   tflite_single_rounding  ruy's portable path, and TFLITE_SINGLE_ROUNDING: one shift, ties up
#:   tvm_to_nearest          TVM's qnn.requantize in int64 with TONEAREST (UPWARD is the one above): one shift, ties away
#:   tflite_float            TFLite's reference FULLY_CONNECTED: float64 product, ties away
#:   single_float32          XNNPACK, onnxruntime's QLinear operators, fbgemm, qnnpack: float32 product, ties even
#:   exact                   float64 product, ties even: the meaning of the canonical graph
REQUANTIZERS: Mapping[str, Callable[[Array, Array], Array]] = {
    "tflite_double_rounding": _double_rounding,
    "tflite_ruy": _ruy,
    "tflite_single_rounding": _single_rounding,
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
    limits: tuple[int, int] | None = None,
) -> Array:
    """The stored output of an integer operator: clamp(round(acc * scale) + zero_point).

    Args:
        acc: integer accumulator.
        scale: input scales over output scale, broadcast against `acc`; see effective_scale.
        zero_point: of the output.
        dtype: canonical name of the output's dtype.
        kernel: a key of REQUANTIZERS.
        limits: stored range left by a fused activation.

    Raises:
        OptionError: there is no such kernel.
    """
    if kernel not in REQUANTIZERS:
        raise OptionError(
            f"the requantizer is {kernel!r}, which is unknown", remedy=f"Use one of {', '.join(REQUANTIZERS)}.", rule="unknown-requantizer"
        )
    steps = REQUANTIZERS[kernel](np.asarray(acc, np.int64), np.asarray(scale, np.float64)) + zero_point
    if limits is not None:
        steps = np.clip(steps, *limits)
    return saturate(steps, dtype)


def effective_scale(first: Any, second: Any, output: Any, precision: str = "float64") -> Array:
    """first * second / output, the real multiplier of a product of two quantized tensors, as float64.

    Args:
        first: float32 scale of the input.
        second: float32 scale or scales of the other factor, such as a weight's.
        output: float32 scale of the output.
        precision: float64 for TFLite's convolutions of int8 (PopulateConvolutionQuantizationParams); float32 for XNNPACK, onnxruntime and
            TFLite's MUL, which round after each step; "product" where the first step alone is of float32, as in TFLite's convolutions of
            uint8 (GetQuantizedConvolutionMultipler).
    """
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
