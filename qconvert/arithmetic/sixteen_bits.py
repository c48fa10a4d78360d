"""TFLite's own kernels of 16-bit data, whose zero points are 0. Measured equal to LiteRT's (tests/test_arithmetic.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.arithmetic.quantization import Quantization
from qconvert.arithmetic.requantize import effective_scale, multiply_by_quantized_multiplier, quantize_multiplier, shift_half_up
from qconvert.arithmetic.rounding import saturate

__all__ = ["PAIR_BITS", "pair_factors", "short_multipliers", "tflite_pair", "tflite_sums"]

#: By how many bits ADD and SUB shift their data to the left (add.cc, sub.cc).
PAIR_BITS = 15


def pair_factors(kind: str, inputs: tuple[Quantization, Quantization], output: Quantization) -> tuple[float, float, float]:
    """The real multipliers of both operands and of their sum, difference or product in tflite_pair().

    Args:
        kind: Add, Sub or Mul.
        inputs, output: quantizations.
    """
    first, second = (float(item.scale[0]) for item in inputs)
    if kind == "Mul":
        return 1.0, 1.0, float(effective_scale(inputs[0].scale[0], inputs[1].scale[0], output.scale[0], "float32"))
    common = 2 * max(first, second)
    return first / common, second / common, common / (2.0**PAIR_BITS * float(output.scale[0]))


def tflite_pair(kind: str, a: Any, b: Any, inputs: tuple[Quantization, Quantization], output: Quantization) -> Array:
    """ADD, SUB and MUL of int16: operands of sums are brought to a quantization of 2**-15, the result to its own, each with two roundings.

    Operands of an ADD that have one shape are rounded once (measured, LiteRT 2.3).

    Args:
        kind: Add, Sub or Mul.
        a, b: stored integers.
        inputs, output: quantizations.
    """
    *factors, last = pair_factors(kind, inputs, output)
    x, y = np.asarray(a, np.int64), np.asarray(b, np.int64)
    if kind != "Mul":
        rounded = _rescale_once if kind == "Add" and x.shape == y.shape else _rescale_twice
        x, y = (rounded(steps << PAIR_BITS, factor) for steps, factor in zip((x, y), factors, strict=True))
    total = x * y if kind == "Mul" else x - y if kind == "Sub" else x + y
    return saturate(_rescale_twice(total, last), "int16")


def _rescale_twice(steps: Array, factor: float) -> Array:
    return multiply_by_quantized_multiplier(steps, *quantize_multiplier(factor))


def _rescale_once(steps: Array, factor: float) -> Array:
    multiplier, shift = quantize_multiplier(factor)
    return shift_half_up(steps * multiplier.astype(np.int64), 31 - shift)


def tflite_sums(total: Any, factors: Any, output: Quantization, dtype: str) -> Array:
    """Stored results of TFLite's convolutions of 16-bit data: sums of 64 bits by 16 bits of the multiplier, ties up.

    Source: MultiplyByQuantizedMultiplier of int64_t (common.cc).

    Args:
        total: sums, the bias among them, the outputs along the last axis.
        factors: real multipliers, one or one for each output.
        output: the result's quantization.
        dtype: its type.
    """
    multiplier, bits = short_multipliers(factors)
    return saturate(shift_half_up(np.asarray(total, np.int64) * multiplier, bits) + output.zero_point[0], dtype)


def short_multipliers(factors: Any) -> tuple[Array, Array]:
    """Positive real multipliers as (integer below 2**15, right shift): what TFLite makes of them for sums of 64 bits."""
    fixed, shift = quantize_multiplier(factors)
    wide = fixed.astype(np.int64)
    return np.where(wide < 0x7FFF0000, (wide + (1 << 15)) >> 16, 0x7FFF), 15 - shift
