"""gemmlowp's logistic and tanh of 16-bit fixed-point numbers, to the last bit (fixedpoint/fixedpoint.h).

A number of b integer bits is an int16 in steps of 2**(b - 15). All 65,536 results are LiteRT's (tests/checking/test_overflows.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.arithmetic.requantize import rounding_divide_by_pot

__all__ = ["gemmlowp_logistic", "gemmlowp_tanh", "high_product", "saturate_int16"]

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
