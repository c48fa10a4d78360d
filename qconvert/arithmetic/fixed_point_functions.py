"""Functions of fixed-point numbers as TFLite's kernels compute them, to the last bit: gemmlowp's logistic and tanh of 16 bits
(fixedpoint/fixedpoint.h), 1 / sqrt(x) as a multiplier, and the division of integers with scales.

A 16-bit number of b integer bits is an int16 in steps of 2**(b - 15). All 65,536 results of logistic and tanh are LiteRT's
(tests/checking/test_overflows.py). 1 / sqrt(x) is TFLite's GetInvSqrtQuantizedMultiplierExp (kernels/internal/common.h). The quotient of a
division fills 31 bits before it is shifted to the right; quotients far below a step of the result ask for shifts by 32 bits and more, of
which x86 takes the remainder: what comes of them has nothing to do with the quotient. Measured equal to LiteRT's on x86.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic.requantize import quantize_multiplier, rounding_divide_by_pot, saturating_rounding_doubling_high_mul
from qconvert.arithmetic.storage import Array, Quantization

__all__ = [
    "HALF_ROOT",
    "ITERATIONS",
    "LARGEST",
    "ONE",
    "THREE_HALVES",
    "gemmlowp_logistic",
    "gemmlowp_tanh",
    "high_product",
    "inverse_root",
    "saturate_int16",
    "tflite_divide",
]

_LOW, _HIGH = -(2**15), 2**15 - 1
#: 1 of two integer bits.
_ONE = 2**13
#: The powers of two whose exponentials the argument of exp() is made of.
_EXPONENTS = range(-2, 5)


def gemmlowp_logistic(values: Array) -> Array:
    """1 / (1 + exp(-x)) of int16 with 3 integer bits, as int16 in steps of 2**-15."""
    x = values.astype(np.int64)
    above = saturate_int16(_newton(_exp(-np.abs(x), 3)) << 1)
    found = np.where(x > 0, above, _HIGH - above)
    return np.where(x == 0, 2**14, found).astype(np.int16)


def gemmlowp_tanh(values: Array, bits: int = 3) -> Array:
    """tanh(x) of int16 with `bits` integer bits, 0 to 6, as int16 in steps of 2**-15; (1 - e) / (1 + e) with e = exp(-2 |x|)."""
    x = values.astype(np.int64)
    above = saturate_int16((_newton(_exp(-np.abs(x), bits + 1)) - _ONE) << 2)
    return np.asarray(np.sign(x) * above).astype(np.int16)


def _exp(x: Array, bits: int) -> Array:
    """exp(x) for x <= 0 of `bits` integer bits, with none: that of a rest in [-1/4, 0) by four terms around -1/8, times powers of two's."""
    quarter = 1 << (13 - bits)
    rest = (x & (quarter - 1)) - quarter
    y = (rest << bits) + 2**12
    square = high_product(y, y)
    cube, fourth = high_product(square, y), high_product(square, square)
    terms = rounding_divide_by_pot(high_product(rounding_divide_by_pot(fourth, 2) + cube, _constant(1 / 3, 0)) + square, 1)
    middle = _constant(float(np.exp(-1 / 8)), 0)
    found = saturate_int16(middle + high_product(y + terms, middle))
    for exponent in _EXPONENTS:
        if bits > exponent:
            has = (rest - x) & (1 << (15 - bits + exponent)) != 0
            found = np.where(has, high_product(found, _constant(float(np.exp(-(2.0**exponent))), 0)), found)
    if bits > _EXPONENTS.stop:  # a power of two above those of the product
        found = np.where(x < -(1 << (20 - bits)), 0, found)
    return np.where(x == 0, _HIGH, found)


def _newton(e: Array) -> Array:
    """2 / (1 + e) of two integer bits, for e in [0, 1] with none: three steps from a straight line."""
    half = (e + _HIGH + 1) >> 1
    found = _constant(48 / 17, 2) + high_product(half, _constant(-32 / 17, 2))
    for _ in range(3):
        found = found + saturate_int16(high_product(found, _ONE - high_product(half, found)) << 2)
    return found


def _constant(value: float, bits: int) -> int:
    return round(value * 2.0 ** (15 - bits))


def high_product(a: Any, b: Any) -> Array:
    """SaturatingRoundingDoublingHighMul of int16, but for the one product that saturates: a * b / 2**15, halves up."""
    product = np.asarray(a, np.int64) * b
    return np.asarray(np.where(product >= 0, (product + 2**14) >> 15, -((2**14 - 1 - product) >> 15)))


def saturate_int16(x: Array) -> Array:
    """Numbers within those of int16."""
    return np.clip(x, _LOW, _HIGH)


#: sqrt(1/2) in 31 bits.
HALF_ROOT = 1518500250
#: 1.5 and 1 of 3 integer bits.
THREE_HALVES, ONE = (1 << 28) + (1 << 27), 1 << 28
LARGEST = 2**31 - 1
#: Of Newton's method.
ITERATIONS = 5


def inverse_root(values: Array) -> tuple[Array, Array]:
    """Multipliers and shifts, as multiply_by_quantized_multiplier() takes them.

    Args:
        values: int64, 1 or more, below 2**31.
    """
    found = [_invert_root(int(value)) for value in values.reshape(-1)]
    multiplier, shift = (np.array([pair[index] for pair in found], np.int64).reshape(values.shape) for index in (0, 1))
    return multiplier, shift


def _invert_root(value: int) -> tuple[int, int]:
    if value <= 1:
        return LARGEST, 0
    shift = 11
    while value >= 1 << 29:
        value, shift = value // 4, shift + 1
    pairs = (32 - value.bit_length() - 1) // 2 - 1
    shift, value = shift - pairs, value << (2 * pairs)
    whole = value >> 1
    half = int(rounding_divide_by_pot(whole, 1))
    x = ONE
    for _ in range(ITERATIONS):
        cube = _drop_integer_bits(_multiply_high(_multiply_high(x, x), x), 6)
        x = _drop_integer_bits(_multiply_high(THREE_HALVES, x) - _multiply_high(half, cube), 3)
    x = _multiply_high(x, HALF_ROOT)
    if shift < 0:
        x, shift = x << -shift, 0
    return x, -shift


def _multiply_high(a: int, b: int) -> int:
    return int(saturating_rounding_doubling_high_mul(a, b))


def _drop_integer_bits(x: int, bits: int) -> int:
    """With fewer integer bits, limited to int32."""
    return max(-LARGEST - 1, min(LARGEST, x << bits))


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
