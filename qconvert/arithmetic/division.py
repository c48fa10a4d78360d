"""TFLite's DIV of integers with scales, to the last bit, also where C leaves its shift undefined. Measured equal to LiteRT's on x86.

The quotient fills 31 bits before it is shifted to the right. Quotients far below a step of the result ask for shifts by 32 bits and more,
of which x86 takes the remainder: what comes of them has nothing to do with the quotient.
"""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.arithmetic.quantization import Quantization
from qconvert.arithmetic.requantize import quantize_multiplier, rounding_divide_by_pot, saturating_rounding_doubling_high_mul

__all__ = ["tflite_divide"]

_BITS = 31
#: 48 / 17 and -32 / 17 with 29 bits after the point: where Newton's iteration for 1 / x begins (gemmlowp, fixedpoint.h).
_FIRST, _SLOPE = 1515870810, -1010580540
_ROUNDS = 3


def tflite_divide(
    values: Array, divisors: Array, given: Quantization, divisor: Quantization, output: Quantization, limits: tuple[int, int]
) -> tuple[Array, bool]:
    """DIV of int8, uint8 or int16 (reference/div.h), and whether a shift is undefined.

    Args:
        values, divisors: stored integers, of one shape; no divisor is zero.
        given, divisor, output: quantizations, per tensor.
        limits: the lowest and the highest integer of the result.
    """
    x, y = (data.astype(np.int64) - int(quantization.zero_point[0]) for data, quantization in ((values, given), (divisors, divisor)))
    x, y = np.where(y < 0, -x, x), np.maximum(np.abs(y), 1)
    with np.errstate(over="ignore"):  # float32, as the kernel has it
        ratio = float(np.float32(given.scale[0]) / (np.float32(divisor.scale[0]) * np.float32(output.scale[0])))
    multiplier, shift = (int(item) for item in quantize_multiplier(ratio))
    inverse, whole = _reciprocal(y)
    room = _BITS - _length(np.where(x < 0, ~x, x))
    right = whole + room - shift
    quotient = saturating_rounding_doubling_high_mul(saturating_rounding_doubling_high_mul(x << room, inverse), multiplier)
    undefined = right > _BITS
    # A mask of 32 ones is -1 in int32, and half of it is -1 too.
    strange = (quotient >> (right % 32)) + (quotient > np.where(quotient < 0, 0, -1))
    steps = np.where(undefined, strange, rounding_divide_by_pot(quotient, np.clip(right, 0, _BITS)))
    return np.clip(steps + int(output.zero_point[0]), *limits).astype(values.dtype), bool(undefined.any())


def _length(values: Array) -> Array:
    """The number of bits of integers from 0 to 2**53."""
    return np.asarray(np.frexp(values.astype(np.float64))[1], np.int64)


def _reciprocal(values: Array) -> tuple[Array, Array]:
    """2**31 over the mantissa of integers from 1 to 2**31, and the bits after its leading one (GetReciprocal, internal/common.h)."""
    bits = _length(values)
    fraction = (values << (_BITS + 1 - bits)) - 2**_BITS
    half = (fraction + 2**_BITS) >> 1
    found = _FIRST + saturating_rounding_doubling_high_mul(half, _SLOPE)
    for _ in range(_ROUNDS):
        error = 2**29 - saturating_rounding_doubling_high_mul(half, found)
        found = found + np.clip(saturating_rounding_doubling_high_mul(found, error) << 2, -(2**_BITS), 2**_BITS - 1)
    return np.minimum(found << 1, 2**_BITS - 1), bits - 1
