"""Elementwise functions as formulas: activation functions, arithmetic, comparisons and logic, trigonometric and hyperbolic functions, and
the error function. Several roundings come near to the last three.
"""

from __future__ import annotations

import math

import numpy as np

from qconvert.arithmetic.storage import numpy_dtype
from qconvert.operators.formulas.formula import Formula, lowers
from qconvert.operators.values import (
    Value,
    absolute,
    apply,
    cast,
    clip,
    constant_of,
    dtype_of,
    erf,
    exp,
    log,
    minimum,
    rank_of,
    relu,
    sigmoid,
    sign,
    sqrt,
    square,
    static_shape_of,
    tanh,
    where,
)


@lowers("HardSwish", is_sought=True)
def hard_swish(x: Value) -> Value:
    """x * relu6(x + 3) / 6 (Howard et al., 2019)."""
    return x * apply("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@lowers("HardSigmoid")
def hard_sigmoid(x: Value, *, alpha: float, beta: float) -> Value:
    """alpha * x + beta between 0 and 1."""
    return clip(x * alpha + beta, 0.0, 1.0)


@lowers("Clip")
def clip_by_extremes(x: Value, lowest: Value = None, highest: Value = None) -> Value:
    """min(max(x, lowest), highest)."""
    x = x if lowest is None else apply("Max", x, lowest)
    return x if highest is None else apply("Min", x, highest)


@lowers("Swish", is_near=True, is_sought=True)
def swish(x: Value, *, alpha: float) -> Value:
    """x * sigmoid(alpha * x) (Ramachandran et al., 2017)."""
    return x * sigmoid(x if alpha == 1.0 else x * alpha)


@lowers("Softplus")
def softplus(x: Value) -> Value:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    return relu(x) + log(exp(-absolute(x)) + 1.0)


@lowers("Mish", is_sought=True)
def mish(x: Value) -> Value:
    """x * tanh(softplus(x)) (Misra, 2019)."""
    return x * tanh(apply("Softplus", x))


@lowers("Mish", is_emitted=False)
def mish_by_exp(x: Value) -> Value:
    """x * tanh(log(exp(x) + 1)), whose exponential overflows."""
    return x * tanh(log(exp(x) + 1.0))


@lowers("Softsign")
def softsign(x: Value) -> Value:
    """x / (1 + |x|)."""
    return x / (absolute(x) + 1.0)


@lowers("Gelu", is_sought=True)
def gelu(x: Value, *, approximate: str) -> Value:
    """x / 2 * (1 + erf(x / sqrt(2))), or its approximation by tanh (Hendrycks and Gimpel, 2016)."""
    if approximate == "tanh":
        curve = tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi))
    else:
        curve = erf(x * math.sqrt(0.5))
    return x * 0.5 * (curve + 1.0)


@lowers("ThresholdedRelu")
def thresholded_relu(x: Value, *, alpha: float) -> Value:
    """x where it is above alpha, else 0."""
    return where(apply("Greater", x, alpha), x, 0.0)


@lowers("Elu")
def elu(x: Value, *, alpha: float) -> Value:
    """max(x, 0) + alpha * min(exp(x) - 1, 0), by an Elu whose alpha is 1."""
    return None if alpha == 1.0 else relu(x) + minimum(apply("Elu", x), 0.0) * alpha


@lowers("Celu")
def celu(x: Value, *, alpha: float) -> Value:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)."""
    return relu(x) + minimum(apply("Elu", x if alpha == 1.0 else x / alpha), 0.0) * alpha


@lowers("Selu")
def selu(x: Value, *, alpha: float, gamma: float) -> Value:
    """gamma * (max(x, 0) + alpha * min(exp(x) - 1, 0)) (Klambauer et al., 2017)."""
    return (relu(x) + minimum(apply("Elu", x), 0.0) * alpha) * gamma


@lowers("PRelu")
def prelu(x: Value, slope: Value) -> Value:
    """max(x, 0) + slope * min(x, 0)."""
    return relu(x) + minimum(x, 0.0) * slope


@lowers("Shrink", is_near=True)
def shrink(x: Value, *, lambd: float, bias: float) -> Value:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    above = where(apply("Greater", x, lambd), x - bias, 0.0)
    return where(apply("Less", x, -lambd), x + bias, above)


@lowers("Round")
def round_half_even(x: Value) -> Value:
    """The whole number below, and 1 above the middle; in the middle 1 where that is odd."""
    low = apply("Floor", x)
    rest, odd = x - low, low - apply("Floor", low * 0.5) * 2.0
    return low + where(apply("Greater", rest, 0.5), 1.0, where(apply("GreaterOrEqual", rest, 0.5), odd, 0.0))


@lowers("Less")
def less(a: Value, b: Value) -> Value:
    """b > a."""
    return apply("Greater", b, a)


@lowers("Equal")
def equal(a: Value, b: Value) -> Value:
    """Neither is above the other; nothing is equal to NaN."""
    return apply("And", apply("GreaterOrEqual", a, b), apply("LessOrEqual", a, b))


def _with_whole_operand(kind: str) -> Formula:
    """The comparison of an operand that has the shape of the result, for runtimes that do not broadcast both."""

    def compare(a: Value, b: Value) -> Value:
        first, second = static_shape_of(a), static_shape_of(b)
        if first is None or second is None:
            return None
        return apply(kind, apply("Expand", a, np.array(np.broadcast_shapes(first, second), np.int64)), b)

    return Formula(kind, compare)


greater_of_whole, greater_or_equal_of_whole, less_or_equal_of_whole = map(_with_whole_operand, ("Greater", "GreaterOrEqual", "LessOrEqual"))


@lowers("BitwiseNot")
def bitwise_not(x: Value) -> Value:
    """x XOR the number whose bits are all ones."""
    dtype = dtype_of(x)
    return apply("BitwiseXor", x, np.invert(np.zeros((), numpy_dtype(dtype)))) if "int" in dtype else None


@lowers("Square")
def square_by_product(x: Value) -> Value:
    """x * x."""
    return x * x


@lowers("Pow", is_near=True)
def power_by_products(x: Value, exponent: Value) -> Value:
    """x * x * ... for a known whole exponent."""
    known = constant_of(exponent)
    if known is None or known.size != 1 or known.ndim > (rank_of(x) or 0) or known.flat[0] not in range(2, 9):
        return None
    value = x
    for _ in range(int(known.flat[0]) - 1):
        value = value * x
    return value


@lowers("Sign")
def sign_by_comparisons(x: Value) -> Value:
    """1 where x is above 0, less 1 where it is below."""
    above, below = (cast(apply(kind, x, 0), dtype_of(x)) for kind in ("Greater", "Less"))
    return above - below


@lowers("Sign", is_near=True)
def sign_by_bounds(x: Value) -> Value:
    """A multiple of x between -1 and 1, which is neither where x is nearer to 0 than 3.4e-39, for runtimes that do not compare."""
    return clip(x * 3e38, -1.0, 1.0) if dtype_of(x) in ("float32", "float64") else None


@lowers("Where")
def choose_by_products(condition: Value, x: Value, y: Value) -> Value:
    """x * c + y * (1 - c), of integers."""
    if "int" not in (dtype := dtype_of(x)):
        return None
    chosen = cast(condition, dtype)
    return x * chosen + y * (1 - chosen)


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


@lowers("Erf", is_near=True)
def erf_by_exponential(x: Value) -> Value:
    """A polynomial of 1 / (1 + 0.3275911 |x|) times exp(-x * x), within 1.5e-7 (Abramowitz and Stegun, 1964, formula 7.1.26)."""
    near = apply("Reciprocal", absolute(x) * 0.3275911 + 1.0)
    series = near * 1.061405429 - 1.453152027
    for coefficient in (1.421413741, -0.284496736, 0.254829592):
        series = series * near + coefficient
    return sign(x) * (1.0 - series * near * exp(0.0 - square(x)))
