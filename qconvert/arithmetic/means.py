"""Sums and means of quantized data with the integers of LiteRT's kernels. Measured equal to them (tests/test_arithmetic.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.arithmetic.quantization import Quantization
from qconvert.arithmetic.requantize import multiply_by_quantized_multiplier, quantize_multiplier
from qconvert.arithmetic.rounding import round_half_even, saturate

__all__ = ["tflite_mean", "tflite_mean_multiplier", "xnnpack_reduce", "xnnpack_reduction"]


def xnnpack_reduction(given: Quantization, output: Quantization, count: int, is_mean: bool) -> tuple[np.float32, np.float32]:
    """What XNNPACK multiplies the sum of stored integers by, and what it adds then; each is rounded to float32 on its way.

    Source: XNNPACK, the operators static_reduce (a sum of int32, made a float32) and convert; the order of the products was found by
    sums for which it decides.

    Args:
        given, output: quantizations.
        count: how many integers are summed.
        is_mean: whether the sum is divided by it.
    """
    share = np.float32(1) / np.float32(count) if is_mean else np.float32(1)
    factor = np.float32(share * np.float32(given.scale[0] / output.scale[0]))
    zero = np.float32(np.float32(count * int(given.zero_point[0])) * factor)
    return factor, np.float32(np.float32(int(output.zero_point[0])) - zero)


def xnnpack_reduce(total: Any, count: int, is_mean: bool, given: Quantization, output: Quantization, dtype: str) -> Array:
    """Stored results of XNNPACK's MEAN and SUM of 8-bit data: float32, ties to even of the integer with its zero point.

    Args:
        total: sums of stored integers.
        count, is_mean, given, output: as in xnnpack_reduction().
        dtype: of data and result.
    """
    factor, offset = xnnpack_reduction(given, output, count, is_mean)
    steps = np.asarray(total).astype(np.float32) * factor + offset
    return saturate(round_half_even(steps.astype(np.float64)).astype(np.int64), dtype)


def tflite_mean_multiplier(given: Quantization, output: Quantization, count: int) -> tuple[int, int]:
    """(integer below 2**31, shift), the shift being to the right if it is negative: TFLite's multiplier of a mean.

    Source: QuantizedMeanOrSum (reference/reduce.h): the multiplier of the scales is divided by the count, cut off, with as many bits gained
    as the count has.
    """
    fixed, exponent = (int(item) for item in quantize_multiplier(float(given.scale[0]) / float(output.scale[0])))
    gained = min(count.bit_length() - 1, 32, 31 + exponent)
    return (fixed << gained) // count, exponent - gained


def tflite_mean(total: Any, count: int, given: Quantization, output: Quantization, dtype: str) -> Array:
    """Stored results of TFLite's own MEAN: an integer multiplier, rounded twice.

    Args:
        total: sums of stored integers.
        count: how many integers are summed.
        given, output: quantizations.
        dtype: of data and result.
    """
    steps = np.asarray(total, np.int64) - count * int(given.zero_point[0])
    multiplier, shift = tflite_mean_multiplier(given, output, count)
    return saturate(multiply_by_quantized_multiplier(steps, multiplier, shift) + int(output.zero_point[0]), dtype)
