"""Functions of single elements and of pairs of elements, and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.arithmetic import xnnpack_add
from qconvert.evaluate.call import Call, ExactResult, Function, Result, activated, activated_stored
from qconvert.graph import Array, numpy_dtype

__all__ = ["FUNCTIONS"]

_erf = np.frompyfunc(math.erf, 1, 1)


def _unary(function: Callable[[Array], Any]) -> Function:
    """An operator that is a numpy function of its input."""
    return lambda call: np.asarray(function(call.values()))


def _binary(function: Callable[[Array, Array], Any]) -> Function:
    """An operator that is a numpy function of its two inputs, with broadcasting."""
    return lambda call: np.asarray(function(call.values(0), call.values(1)))


def _activated(function: Callable[[Array, Array], Any]) -> Function:
    """Likewise, with a fused activation."""
    return lambda call: activated(np.asarray(function(call.values(0), call.values(1))), call["activation"])


def divide(a: Array, b: Array) -> Array:
    """a / b; integers are divided towards zero, as in ONNX and TFLite."""
    if a.dtype.kind == "f" or b.dtype.kind == "f":
        return np.asarray(a / b)
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)))


def add(call: Call) -> Result:
    """Add; with `fixed_point` the stored result is that of the kernel named, while the real one stays exact."""
    real = activated(np.asarray(call.values(0) + call.values(1)), call["activation"])
    first, second, output = call.quantization(0), call.quantization(1), call.results[0].quantization
    if call["fixed_point"] != "xnnpack" or first is None or second is None or output is None:
        return real
    stored = xnnpack_add(call.raw(0), call.raw(1), (first, second), output, call.results[0].dtype)
    return ExactResult(real, activated_stored(call, stored))


def multiply(call: Call) -> Array:
    """Mul: the product of the whole steps is exact, and is scaled once."""
    if call.quantization(0) is None and call.quantization(1) is None:
        return activated(np.asarray(call.values(0) * call.values(1)), call["activation"])
    (a, a_scale), (b, b_scale) = call.factor(0), call.factor(1)
    return activated(np.asarray(a * b * (a_scale * b_scale)), call["activation"])


def power(a: Array, b: Array) -> Array:
    """a ** b; an integer to a negative power is rounded towards zero."""
    if a.dtype.kind == "f" or b.dtype.kind == "f" or not (b < 0).any():
        return np.asarray(a**b)
    return np.asarray(np.trunc(a.astype(np.float64) ** b).astype(np.int64))


def prelu(a: Array, slope: Array) -> Array:
    """PRelu of ONNX; the slope broadcasts against the data."""
    return np.where(a < 0, a * slope, a)


def clip(call: Call) -> Array:
    """Clip of ONNX: both bounds are optional, and the upper one wins."""
    values = call.values()
    for index, limit in ((1, np.maximum), (2, np.minimum)):
        if call.has(index):
            values = np.asarray(limit(values, call.values(index).reshape(())))
    return values


def gelu(call: Call) -> Array:
    """Gelu of ONNX, by the error function or its tanh approximation."""
    x = call.values()
    if call["approximate"] == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + np.asarray(_erf(x / math.sqrt(2)), np.float64)))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return np.logaddexp(x, 0.0)


def celu(call: Call) -> Array:
    """Celu of ONNX: max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    x, alpha = call.values(), call["alpha"]
    return np.asarray(np.where(x > 0, x, np.minimum(0, alpha * np.expm1(x / alpha))))


def selu(call: Call) -> Array:
    """Selu of ONNX: gamma * x above 0, gamma * alpha * (exp(x) - 1) below."""
    x = call.values()
    return np.asarray(call["gamma"] * np.where(x > 0, x, call["alpha"] * np.expm1(x)))


def dynamic_quantize(call: Call) -> list[Array]:
    """DynamicQuantizeLinear of ONNX: (uint8, scale, zero point) of a range that includes 0.

    The specification computes in float32, and so does this: which side a tie falls on depends on it. All zeros have the scale 1,
    as in onnxruntime; the specification would divide by zero.
    """
    x = call.raw().astype(np.float32)
    low, high = np.float32(x.min(initial=0)), np.float32(x.max(initial=0))
    scale = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
    zero_point = np.rint(np.clip(-low / scale, 0, 255))
    stored = np.clip(np.rint(x / scale) + zero_point, 0, 255)
    return [stored.astype(np.uint8), np.asarray(scale), np.asarray(zero_point, np.uint8)]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


def softmax(call: Call) -> Array:
    """exp(beta * x) over its sum along the axis."""
    axis = call["axis"]
    x = call["beta"] * call.values()
    raised = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(raised / raised.sum(axis=axis, keepdims=True))


def log_softmax(call: Call) -> Array:
    """The logarithm of Softmax."""
    axis, x = call["axis"], call.values()
    below = x - x.max(axis=axis, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis=axis, keepdims=True)))


def lp_normalization(call: Call) -> Array:
    """LpNormalization of ONNX: x over its norm along the axis; a vector of zeros stays."""
    x, order = call.values(), call["p"]
    norm = (np.abs(x) ** order).sum(axis=call["axis"], keepdims=True) ** (1 / order)
    return activated(np.asarray(x / np.where(norm == 0, 1, norm)), call["activation"])


def cast(call: Call) -> Array:
    """Cast: the stored numbers in another type; a float loses its fraction."""
    return call.raw().astype(numpy_dtype(call["to"]))


def where(call: Call) -> Array:
    """Where of ONNX."""
    return np.where(call.raw(0), call.values(1), call.values(2))


FUNCTIONS: dict[str, Function] = {
    "Add": add,
    "Sub": _activated(np.subtract),
    "Mul": multiply,
    "Div": _activated(divide),
    "Max": _binary(np.maximum),
    "Min": _binary(np.minimum),
    "Pow": _binary(power),
    "FloorDiv": _binary(np.floor_divide),
    "FloorMod": _binary(np.mod),
    "SquaredDifference": _binary(lambda a, b: (a - b) ** 2),
    "PRelu": _binary(prelu),
    "Equal": _binary(np.equal),
    "NotEqual": _binary(np.not_equal),
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Xor": _binary(np.logical_xor),
    "Not": _unary(np.logical_not),
    "Abs": _unary(np.abs),
    "Neg": _unary(np.negative),
    "Exp": _unary(np.exp),
    "Log": _unary(np.log),
    "Sqrt": _unary(np.sqrt),
    "Rsqrt": _unary(lambda x: 1 / np.sqrt(x)),
    "Square": _unary(np.square),
    "Sin": _unary(np.sin),
    "Cos": _unary(np.cos),
    "Tan": _unary(np.tan),
    "Asin": _unary(np.arcsin),
    "Acos": _unary(np.arccos),
    "Atan": _unary(np.arctan),
    "Sinh": _unary(np.sinh),
    "Cosh": _unary(np.cosh),
    "Reciprocal": _unary(lambda x: 1 / x),
    "Erf": _unary(lambda x: np.asarray(_erf(x), np.float64)),
    "IsNaN": _unary(np.isnan),
    "IsInf": _unary(np.isinf),
    "Round": _unary(np.rint),
    "Floor": _unary(np.floor),
    "Ceil": _unary(np.ceil),
    "Sign": _unary(np.sign),
    "Relu": _unary(lambda x: np.maximum(x, 0)),
    "HardSwish": _unary(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Sigmoid": _unary(sigmoid),
    "Tanh": _unary(np.tanh),
    "Softplus": _unary(softplus),
    "Softsign": _unary(lambda x: x / (1 + np.abs(x))),
    "Mish": _unary(lambda x: x * np.tanh(softplus(x))),
    "Clip": clip,
    "LeakyRelu": lambda call: np.asarray(np.where(call.values() < 0, call["alpha"] * call.values(), call.values())),
    "Elu": lambda call: np.asarray(np.where(call.values() < 0, call["alpha"] * np.expm1(call.values()), call.values())),
    "Celu": celu,
    "Selu": selu,
    "ThresholdedRelu": lambda call: np.where(call.values() > call["alpha"], call.values(), 0.0),
    "HardSigmoid": lambda call: np.clip(call["alpha"] * call.values() + call["beta"], 0, 1),
    "Gelu": gelu,
    "Softmax": softmax,
    "LogSoftmax": log_softmax,
    "LpNormalization": lp_normalization,
    "Cast": cast,
    "Where": where,
    "DynamicQuantizeLinear": dynamic_quantize,
    "Quantize": Call.values,
    "Dequantize": Call.values,
    "Requantize": Call.values,
    "Identity": Call.raw,
    "Reinterpret": Call.raw,
}
