"""Activation functions as formulas."""

from __future__ import annotations

import math

from qconvert.operators.formulas.formula import lowers
from qconvert.operators.values import Value, absolute, apply, clip, erf, exp, log, minimum, relu, sigmoid, tanh, where

__all__: list[str] = []


@lowers("HardSwish")
def hard_swish(x: Value) -> Value:
    """x * relu6(x + 3) / 6 (Howard et al., 2019)."""
    return x * apply("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@lowers("HardSigmoid")
def hard_sigmoid(x: Value, *, alpha: float, beta: float) -> Value:
    """alpha * x + beta between 0 and 1."""
    return clip(x * alpha + beta, 0.0, 1.0)


@lowers("Swish", is_near=True)
def swish(x: Value, *, alpha: float) -> Value:
    """x * sigmoid(alpha * x) (Ramachandran et al., 2017)."""
    return x * sigmoid(x if alpha == 1.0 else x * alpha)


@lowers("Softplus")
def softplus(x: Value) -> Value:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    return relu(x) + log(exp(-absolute(x)) + 1.0)


@lowers("Mish")
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


@lowers("Gelu")
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
