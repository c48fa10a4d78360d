"""Activation functions with parameters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.arithmetic import quantize, xnnpack_leaky_relu
from qconvert.arithmetic.storage import Array
from qconvert.operators.attributes import (
    choice,
    has,
    number,
    same_shape,
)
from qconvert.operators.call import (
    Call,
    ExactResult,
    extreme_fold,
    has_numbers,
    has_one_quantization,
    is_plain,
)
from qconvert.operators.elementwise import erf, sigmoid
from qconvert.operators.kind import kind
from qconvert.operators.properties import ELEMENTWISE, Interval, Operands, any_value, fixed_bounds

__all__ = ["KINDS"]


def clip(call: Call) -> Array:
    """Clip of ONNX: both bounds are optional, and the upper one wins."""
    values = call.values()
    for index, limit in ((1, np.maximum), (2, np.minimum)):
        if call.has(index):
            values = np.asarray(limit(values, call.values(index).reshape(())))
    return values


def _clip_fold(call: Call) -> Any:
    if not is_plain(call):
        return _clip_stored(call)
    result: Any = call.raw()
    for index, function in ((1, np.maximum), (2, np.minimum)):
        if call.has(index):
            pair = replace(call, stored=(result, call.raw(index).reshape(())), tensors=call.tensors[:1] * 2)
            result = extreme_fold(function)(pair)
            if result is None:
                return None
    return result if has_numbers(call, True) else None


def _clip_stored(call: Call) -> Any:
    """Clip of stored integers, where the bounds are numbers of their quantization, so that nothing is rounded."""
    result, quantization = call.raw(), call.quantization()
    if quantization is None or not has_one_quantization(call, 0, 1) or not quantization.is_per_tensor or "int" not in call.results[0].dtype:
        return None
    for index, function in ((1, np.maximum), (2, np.minimum)):
        if call.has(index):
            bound = call.raw(index).reshape(1)
            stored = quantize(bound, quantization, call.results[0].dtype)
            steps = np.float32(int(stored[0]) - int(quantization.zero_point[0]))
            if bound.dtype != np.float32 or steps * quantization.scale[0] != bound[0]:
                return None
            result = function(result, stored[0])
    return result


def gelu(call: Call) -> Array:
    """Gelu of ONNX, by the error function or its tanh approximation."""
    x = call.values()
    if call["approximate"] == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + np.asarray(erf(x / math.sqrt(2)), np.float64)))


def celu(call: Call) -> Array:
    """Celu of ONNX: max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    x, alpha = call.values(), call["alpha"]
    return np.asarray(np.where(x > 0, x, np.minimum(0, alpha * np.expm1(x / alpha))))


def selu(call: Call) -> Array:
    """Selu of ONNX: gamma * x above 0, gamma * alpha * (exp(x) - 1) below."""
    x = call.values()
    return np.asarray(call["gamma"] * np.where(x > 0, x, call["alpha"] * np.expm1(x)))


def leaky_relu(call: Call) -> Array | ExactResult:
    """LeakyRelu of ONNX; with an arithmetic the stored integers are those of its kernel."""
    real = np.asarray(np.where(call.values() < 0, call["alpha"] * call.values(), call.values()))
    (result,), given = call.results, call.quantization()
    if not call["arithmetic"] or given is None or result.quantization is None:
        return real
    return ExactResult(real, xnnpack_leaky_relu(call.raw(), given, result.quantization, result.dtype, float(call["alpha"])))


def elu(call: Call) -> Array:
    """Elu of ONNX."""
    return np.asarray(np.where(call.values() < 0, call["alpha"] * np.expm1(call.values()), call.values()))


def thresholded_relu(call: Call) -> Array:
    """ThresholdedRelu of ONNX."""
    return np.where(call.values() > call["alpha"], call.values(), 0.0)


def shrink(call: Call) -> Array:
    """Shrink of ONNX: x + bias below -lambd, x - bias above lambd, 0 between them."""
    x, bias, limit = call.values(), call["bias"], call["lambd"]
    return np.asarray(np.where(x < -limit, x + bias, np.where(x > limit, x - bias, 0.0)))


def swish(call: Call) -> Array:
    """Swish of ONNX: x * sigmoid(alpha * x)."""
    x = call.values()
    return np.asarray(x * sigmoid(call["alpha"] * x))


def hard_sigmoid(call: Call) -> Array:
    """HardSigmoid of ONNX."""
    return np.asarray(np.clip(call["alpha"] * call.values() + call["beta"], 0, 1))


_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _clip_interval(operands: Operands) -> Interval:
    low, high = operands.data[0]
    floor, ceiling = operands.interval(1)[0], operands.interval(2)[1]
    return min(max(low, floor), ceiling), min(max(high, floor), ceiling)


KINDS = (
    kind(
        "Clip",
        "data parameter? parameter?",
        bounds=_clip_interval,
        clips=True,
        keeps_range=True,
        shape=same_shape,
        evaluate=clip,
        fold=_clip_fold,
        layout=ELEMENTWISE,
    ),
    kind(
        "LeakyRelu",
        bounds=any_value,
        scales_channels=True,
        shape=same_shape,
        evaluate=leaky_relu,
        layout=ELEMENTWISE,
        attributes=has(alpha=number(0.01), arithmetic=choice(("", "xnnpack"), "")),
    ),
    kind("Elu", bounds=any_value, shape=same_shape, evaluate=elu, layout=ELEMENTWISE, attributes=has(alpha=number(1.0))),
    kind("Celu", bounds=any_value, shape=same_shape, evaluate=celu, layout=ELEMENTWISE, attributes=has(alpha=number(1.0))),
    kind(
        "Selu",
        bounds=any_value,
        shape=same_shape,
        evaluate=selu,
        layout=ELEMENTWISE,
        attributes=has(alpha=number(_SELU_ALPHA), gamma=number(_SELU_GAMMA)),
    ),
    kind(
        "ThresholdedRelu",
        bounds=any_value,
        shape=same_shape,
        evaluate=thresholded_relu,
        layout=ELEMENTWISE,
        attributes=has(alpha=number(1.0)),
    ),
    kind(
        "Shrink",
        bounds=any_value,
        shape=same_shape,
        evaluate=shrink,
        layout=ELEMENTWISE,
        attributes=has(lambd=number(0.5), bias=number(0.0)),
    ),
    kind("Swish", bounds=any_value, shape=same_shape, evaluate=swish, layout=ELEMENTWISE, attributes=has(alpha=number(1.0))),
    kind(
        "HardSigmoid",
        bounds=fixed_bounds(0.0, 1.0),
        shape=same_shape,
        evaluate=hard_sigmoid,
        layout=ELEMENTWISE,
        attributes=has(alpha=number(0.2), beta=number(0.5)),
    ),
    kind(
        "Gelu",
        bounds=any_value,
        shape=same_shape,
        evaluate=gelu,
        layout=ELEMENTWISE,
        attributes=has(approximate=choice(("none", "tanh"), "none")),
    ),
)
