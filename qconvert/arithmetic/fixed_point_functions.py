"""Functions of fixed-point numbers as TFLite's kernels compute them, to the last bit: gemmlowp's exp, and logistic and tanh of 16 bits
(fixedpoint/fixedpoint.h), 1 / sqrt(x) as a multiplier, the logarithm, and the division of integers with scales.

A 16-bit number of b integer bits is an int16 in steps of 2**(b - 15). All 65,536 results of logistic and tanh are LiteRT's
(tests/checking/test_overflows.py). 1 / sqrt(x) is TFLite's GetInvSqrtQuantizedMultiplierExp (kernels/internal/common.h). The quotient of a
division fills 31 bits before it is shifted to the right; quotients far below a step of the result ask for shifts by 32 bits and more, of
which x86 takes the remainder: what comes of them has nothing to do with the quotient. Measured equal to LiteRT's on x86.
"""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic.requantize import high_product, quantize_multiplier, rounding_divide_by_pot
from qconvert.arithmetic.storage import Array, Quantization

#: The powers of two whose exponentials the argument of exp() is made of.
_EXPONENTS = range(-2, 5)
#: Bits after the sign, by which the functions below are those of int16 or of int32.
_SHORT, _BITS = 15, 31
_TYPES = {_SHORT: np.int16, _BITS: np.int32}


def gemmlowp_logistic(values: Array, bits: int = 3, width: int = _SHORT) -> Array:
    """1 / (1 + exp(-x)) of int16 with 3 integer bits, as int16 in steps of 2**-15; or of int32 with the width 31, in steps of 2**-31."""
    x = values.astype(np.int64)
    above = clip_to_width(_invert(gemmlowp_exp(-np.abs(x), bits, width), width) << 1, width)
    found = np.where(x > 0, above, (1 << width) - 1 - above)
    return np.where(x == 0, 1 << (width - 1), found).astype(_TYPES[width])


def gemmlowp_tanh(values: Array, bits: int = 3, width: int = _SHORT) -> Array:
    """tanh(x) likewise, with `bits` integer bits, 0 to 6; (1 - e) / (1 + e) with e = exp(-2 |x|)."""
    x = values.astype(np.int64)
    above = clip_to_width((_invert(gemmlowp_exp(-np.abs(x), bits + 1, width), width) - _constant(1, 2, width)) << 2, width)
    return np.asarray(np.sign(x) * above).astype(_TYPES[width])


def gemmlowp_exp(x: Array, bits: int, width: int = _BITS) -> Array:
    """exp(x) for x <= 0 of `bits` integer bits, with none: that of a rest in [-1/4, 0) by four terms around -1/8, times powers of two's.

    Args:
        x: numbers of fixed point.
        bits: their integer bits.
        width: their bits after the sign: 31, or 15 for int16.
    """
    largest, quarter = (1 << width) - 1, 1 << (width - 2 - bits)
    rest = (x & (quarter - 1)) - quarter
    y = (rest << bits) + (1 << (width - 3))
    square = high_product(y, y, width)
    cube, fourth = high_product(square, y, width), high_product(square, square, width)
    terms = high_product(rounding_divide_by_pot(fourth, 2) + cube, _constant(1 / 3, 0, width), width) + square
    middle = _constant(float(np.exp(-1 / 8)), 0, width)
    found = np.minimum(middle + high_product(y + rounding_divide_by_pot(terms, 1), middle, width), largest)
    for exponent in _EXPONENTS:
        if bits > exponent:
            has = (rest - x) & (1 << (width - bits + exponent)) != 0
            found = np.where(has, high_product(found, _constant(float(np.exp(-(2.0**exponent))), 0, width), width), found)
    if bits > _EXPONENTS.stop:  # a power of two above those of the product
        found = np.where(x < -(1 << (width + 5 - bits)), 0, found)
    return np.where(x == 0, largest, found)


def _invert(x: Array, width: int) -> Array:
    """2 / (1 + x) of two integer bits, for x in [0, 1] with none: three steps of Newton's method from a straight line."""
    half = (x + (1 << width)) >> 1
    found = _constant(48 / 17, 2, width) + high_product(half, _constant(-32 / 17, 2, width), width)
    for _ in range(3):
        error = _constant(1, 2, width) - high_product(half, found, width)
        found = found + clip_to_width(high_product(found, error, width) << 2, width)
    return np.asarray(found)


def _constant(value: float, bits: int, width: int) -> int:
    return round(value * 2.0 ** (width - bits))


def clip_to_width(x: Array, width: int = _SHORT) -> Array:
    """Numbers within those of int16, or of int32 with the width 31."""
    return np.clip(x, -(1 << width), (1 << width) - 1)


#: Terms of a rational function for the logarithm around 2**(-1/4) (TFLite, kernels/internal/common.h).
_ROOT_OF_TWO = 2.0**0.25
_NUMERATOR, _DENOMINATOR, _LINEAR, _OFFSET = (
    _constant(value, 0, _BITS)
    for value in (11 / 240 * _ROOT_OF_TWO, 1 / 20 * _ROOT_OF_TWO, 1 / 4 * _ROOT_OF_TWO, 2 / _ROOT_OF_TWO - _ROOT_OF_TWO)
)


def tflite_log(x: Array, bits: int, result: int) -> Array:
    """log(x) of int32 (log_x_for_x_greater_than_or_equal_to_1, kernels/internal/common.h): x is a power of two, by the nearer of its whole
    and half exponents, times a number around 2**(-1/4), whose logarithm is that of a rational function.

    Args:
        x: numbers of fixed point with `bits` integer bits, 1 or more.
        bits: integer bits of x.
        result: integer bits of the logarithms.
    """
    within, zeros = result + 1, _BITS + 1 - _length(x)
    first = clip_to_width(high_product(x << (zeros - 1), HALF_ROOT, _BITS) << 1, _BITS)
    others = _BITS - _length(high_product(x, HALF_ROOT, _BITS))
    second = clip_to_width(x << others, _BITS)
    quarter = 1 << (_BITS - 2 - within)
    power = np.maximum(((bits - zeros) << (_BITS - within)) + quarter, ((bits - others) << (_BITS - within)) - quarter)
    near, middle = np.minimum(first, second), _constant(0.5**0.25, 0, _BITS)
    mean, double = (near + middle + 1) >> 1, (near - middle) << 1
    square = high_product(double, double, _BITS)
    numerator = high_product(double, near, _BITS) + high_product(high_product(double, square, _BITS), _NUMERATOR, _BITS)
    denominator = high_product(mean, _OFFSET + double + high_product(_DENOMINATOR, square, _BITS), _BITS)
    inverse = clip_to_width(_invert(denominator + high_product(_LINEAR, double, _BITS), _BITS) << 1, _BITS)
    fraction = high_product(rounding_divide_by_pot(numerator, within), inverse, _BITS)
    return clip_to_width((high_product(power, _constant(float(np.log(2)), 0, _BITS), _BITS) + fraction) << 1, _BITS)


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
    less = np.maximum(_length(values) - 28, 0) >> 1  # pairs of bits, until a value is below 2**29
    value = values >> (2 * less)
    pairs = ((_BITS - _length(value)) >> 1) - 1
    shift, whole = 11 + less - pairs, (value << (2 * np.maximum(pairs, 0))) >> 1
    half, x = rounding_divide_by_pot(whole, 1), np.full(values.shape, ONE, np.int64)
    for _ in range(ITERATIONS):
        cube = clip_to_width(high_product(high_product(x, x), x) << 6, _BITS)
        x = clip_to_width((high_product(THREE_HALVES, x) - high_product(half, cube)) << 3, _BITS)
    x = high_product(x, HALF_ROOT) << np.maximum(-shift, 0)
    is_one = values <= 1
    return np.where(is_one, LARGEST, x), np.where(is_one, 0, -np.maximum(shift, 0))


#: What GetReciprocal (internal/common.h) gives of zero in tflite-micro's package: its first estimate, 48 / 17, in steps of 2**-29.
_INVERSE_OF_ZERO = 1515870810


def tflite_divide(
    values: Array,
    divisors: Array,
    given: Quantization,
    divisor: Quantization,
    output: Quantization,
    limits: tuple[int, int],
    precision: str = "float32",
) -> tuple[Array, bool]:
    """DIV of int8, uint8 or int16 (reference/div.h), and whether a divisor is zero, which LiteRT refuses, or a shift undefined: for these
    the integers are those of tflite-micro's package on x86 (measured).

    Args:
        values, divisors: stored integers, of one shape.
        given, divisor, output: quantizations, per tensor.
        limits: the lowest and the highest integer of the result.
        precision: in which the kernel computes the factor of the scales.
    """
    x, y = (data.astype(np.int64) - quantization.point for data, quantization in ((values, given), (divisors, divisor)))
    is_zero = y == 0
    x, y = np.where(y <= 0, -x, x), np.maximum(np.abs(y), 1)
    scales = [np.dtype(precision).type(quantization.scale[0]) for quantization in (given, divisor, output)]
    with np.errstate(over="ignore"):
        ratio = float(scales[0] / (scales[1] * scales[2]))
    multiplier, shift = (int(item) for item in quantize_multiplier(ratio))
    inverse, whole = gemmlowp_reciprocal(y)
    inverse = np.where(is_zero, _INVERSE_OF_ZERO, inverse)
    room = _BITS - _length(np.where(x < 0, ~x, x))
    right = whole + room - shift - is_zero
    quotient = high_product(high_product(x << room, inverse), multiplier)
    undefined = (right > _BITS) | (right < 0)
    exponent = right % 64  # of the mask, which is made in 64 bits
    # A mask of 32 ones is -1 in int32, and half of it is -1 too.
    strange = (quotient >> (right % 32)) + (quotient > np.where(quotient < 0, 0, -1))
    steps = np.where(exponent > _BITS, strange, rounding_divide_by_pot(quotient, np.minimum(exponent, _BITS)))
    return np.clip(steps + output.point, *limits).astype(values.dtype), bool((undefined | is_zero).any())


def _length(values: Array) -> Array:
    """The number of bits of integers from 0 to 2**53."""
    return np.asarray(np.frexp(values.astype(np.float64))[1], np.int64)


def gemmlowp_reciprocal(values: Array) -> tuple[Array, Array]:
    """2**31 over the mantissa of integers from 1 to 2**31, and the bits after its leading one (GetReciprocal, internal/common.h)."""
    bits = _length(values)
    fraction = (values << (_BITS + 1 - bits)) - 2**_BITS
    return np.minimum(_invert(fraction, _BITS) << 1, 2**_BITS - 1), bits - 1
