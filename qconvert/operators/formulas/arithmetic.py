"""Arithmetic, comparisons and logic as formulas."""

from __future__ import annotations

import math

import numpy as np

from qconvert.arithmetic.dtypes import numpy_dtype
from qconvert.operators.formulas.formula import lowers
from qconvert.operators.values import Value, absolute, apply, cast, dtype_of, sign, sqrt, where

__all__: list[str] = []


@lowers("BitwiseNot")
def bitwise_not(x: Value) -> Value:
    """x XOR the number whose bits are all ones."""
    dtype = dtype_of(x)
    return apply("BitwiseXor", x, np.invert(np.zeros((), numpy_dtype(dtype)))) if "int" in dtype else None


@lowers("Square")
def square(x: Value) -> Value:
    """x * x."""
    return x * x


@lowers("SquaredDifference")
def squared_difference(x: Value, y: Value) -> Value:
    """(x - y) squared."""
    return apply("Square", x - y)


@lowers("Rsqrt")
def rsqrt(x: Value) -> Value:
    """1 / sqrt(x)."""
    return apply("Reciprocal", sqrt(x))


@lowers("Reciprocal")
def reciprocal(x: Value) -> Value:
    """1 / x."""
    return 1.0 / x


@lowers("Tan")
def tan(x: Value) -> Value:
    """sin(x) / cos(x)."""
    return apply("Sin", x) / apply("Cos", x)


@lowers("IsNaN")
def is_nan(x: Value) -> Value:
    """x != x."""
    return apply("NotEqual", x, x)


@lowers("IsInf")
def is_inf(x: Value) -> Value:
    """|x| = infinity."""
    return apply("Equal", absolute(x), math.inf)


@lowers("NotEqual")
def not_equal(x: Value, y: Value) -> Value:
    """Not equal."""
    return apply("Not", apply("Equal", x, y))


@lowers("Xor")
def xor(x: Value, y: Value) -> Value:
    """x != y, of bools."""
    return apply("NotEqual", x, y)


@lowers("Mod")
def mod(x: Value, y: Value) -> Value:
    """The remainder of the magnitudes, which is exact, with the sign of the dividend."""
    return apply("FloorMod", absolute(x), absolute(y)) * sign(x)


@lowers("FloorDiv")
def floor_div(x: Value, y: Value) -> Value:
    """The quotient, rounded down. That of integers is rounded towards zero: it is one less where something is left and signs differ."""
    dtype = dtype_of(x)
    if "float" in dtype:
        return apply("Floor", x / y)
    wide = "int32" if dtype in ("int8", "int16") else dtype  # which the result of few bits wraps around in
    x, y = cast(x, wide), cast(y, wide)
    quotient = apply("Div", x, y)
    remainder = x - quotient * y
    has_rest = apply("Not", apply("Equal", remainder, 0))
    differ = apply("Xor", apply("Less", remainder, 0), apply("Less", y, 0))
    return cast(quotient - cast(apply("And", has_rest, differ), wide), dtype)


@lowers("FloorMod")
def floor_mod(x: Value, y: Value) -> Value:
    """C's fmod, which is exact; one more divisor brings the remainder to the divisor's side of zero."""
    if "float" not in dtype_of(x):
        return None
    remainder = apply("Mod", x, y)
    return where(apply("Less", remainder * y, 0.0), remainder + y, remainder)


@lowers("Sum")
def sum_of_all(*terms: Value) -> Value:
    """Sums of pairs from the left."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
