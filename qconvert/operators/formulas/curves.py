"""Trigonometric and hyperbolic functions, and the error function, as formulas: several roundings come near to them."""

from __future__ import annotations

import math

import numpy as np

from qconvert.arithmetic.dtypes import numpy_dtype
from qconvert.operators.formulas.formula import lowers
from qconvert.operators.values import Value, absolute, apply, cast, dtype_of, exp, log, sign, sqrt, square, where

__all__: list[str] = []


def _leg(x: Value) -> Value:
    """The other leg of a right triangle with hypotenuse 1."""
    return sqrt((1.0 - x) * (x + 1.0))


@lowers("Asin", is_near=True)
def asin(x: Value) -> Value:
    """atan2(x, sqrt((1 - x) * (1 + x)))."""
    return apply("Atan2", x, _leg(x))


@lowers("Acos", is_near=True)
def acos(x: Value) -> Value:
    """atan2(sqrt((1 - x) * (1 + x)), x)."""
    return apply("Atan2", _leg(x), x)


@lowers("Atan", is_near=True)
def atan(x: Value) -> Value:
    """atan2(x, 1); kernels do not broadcast, so that the 1 is exp(0 * sign(x))."""
    return apply("Atan2", x, exp(sign(x) * 0.0))


@lowers("Atan2", is_near=True)
def atan_of_the_ratio(y: Value, x: Value) -> Value:
    """The arc tangent of y / x, moved by half a turn where x is negative, to the side of y; -0 is told from 0 by its reciprocal."""
    dtype = dtype_of(x)
    if dtype == "float16":
        return cast(atan_of_the_ratio.function(cast(y, "float32"), cast(x, "float32")), dtype)

    def is_negative(value: Value) -> Value:
        return apply("Or", apply("Less", value, 0.0), apply("Less", apply("Reciprocal", value), 0.0))

    half = where(is_negative(y), *(np.array(turn, numpy_dtype(dtype)) for turn in (-math.pi, math.pi)))
    ratio = where(apply("And", apply("IsInf", x), apply("IsInf", y)), sign(x) * sign(y), apply("Div", y, x))
    is_origin = apply("And", apply("Equal", x, 0.0), apply("Equal", y, 0.0))
    angle = where(is_origin, y * 0.0, apply("Atan", ratio))
    return where(is_negative(x), angle + half, angle)


@lowers("Sinh", is_near=True)
def sinh(x: Value) -> Value:
    """sign(x) * (1 - exp(-2|x|)) * exp(|x|) / 2; the difference is that of Elu, which loses no digits near 0."""
    size = absolute(x)
    return sign(x) * (apply("Elu", size * -2.0) * exp(size) * -0.5)


@lowers("Cosh", is_near=True)
def cosh(x: Value) -> Value:
    """(exp(x) + exp(-x)) / 2."""
    return (exp(x) + exp(-x)) * 0.5


@lowers("Asinh", is_near=True)
def asinh(x: Value) -> Value:
    """sign(x) * log(|x| + sqrt(x * x + 1))."""
    return sign(x) * log(absolute(x) + sqrt(square(x) + 1.0))


@lowers("Acosh", is_near=True)
def acosh(x: Value) -> Value:
    """log(x + sqrt(x - 1) * sqrt(x + 1))."""
    return log(x + sqrt(x - 1.0) * sqrt(x + 1.0))


@lowers("Atanh", is_near=True)
def atanh(x: Value) -> Value:
    """log((1 + x) / (1 - x)) / 2."""
    return log((x + 1.0) / (1.0 - x)) * 0.5


@lowers("Erf", is_near=True)
def erf_by_gelu(x: Value) -> Value:
    """2 * gelu(z) / z - 1 at z = sqrt(2) * x, as gelu(z) is z * (1 + erf(z / sqrt(2))) / 2; 0 at 0."""
    z = x * math.sqrt(2)
    return where(apply("Equal", x, 0.0), x, apply("Gelu", z) / z * 2.0 - 1.0)
