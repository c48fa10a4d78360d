"""Functions of single elements, activation functions among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from qconvert.arithmetic import dequantize, quantize, saturate, tflite_hard_swish, xnnpack_leaky_relu
from qconvert.arithmetic.polynomials import subtract_polynomials
from qconvert.arithmetic.storage import Array, Quantization
from qconvert.operators.attributes import AttributeSpec, choice, has, number, same_shape
from qconvert.operators.call import (
    Call,
    Fold,
    extreme_fold,
    has_numbers,
    has_one_quantization,
    is_plain,
    numeric_fold,
    on_values,
    with_kernel,
)
from qconvert.operators.kind import Kind
from qconvert.operators.properties import (
    ELEMENTWISE,
    POSITIVE,
    Bounds,
    Demand,
    Interval,
    Number,
    Operands,
    any_value,
    fixed_bounds,
    of_positive_data,
)

erf = np.frompyfunc(math.erf, 1, 1)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return np.logaddexp(x, 0.0)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


def _square_root_by_tflite(call: Call, given: Quantization, output: Quantization) -> Array:
    """TFLite's kernel drops the fraction after a division in float32 (elementwise.cc)."""
    root = np.sqrt(dequantize(call.raw(), given).astype(np.float32))
    steps = np.nan_to_num(np.floor(root / np.float32(output.scale[0])))
    return saturate(steps.astype(np.float64) + output.point, call.results[0].dtype)


def _at_least_zero(operands: Operands) -> Interval:
    ((low, high),) = operands.data
    return max(low, 0.0), max(high, 0.0)


def _above_zero(operands: Operands, number: Number) -> Iterator[Demand]:
    """Kernels refuse to run on quantized data that are not positive (TFLite's elementwise.cc)."""
    tensor = operands.tensor(0)
    q = None if tensor is None else tensor.quantization
    yield 0, POSITIVE if q is None else float(q.scale.max()), math.inf


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
            steps = np.float32(int(stored[0]) - quantization.point)
            if bound.dtype != np.float32 or steps * quantization.scale[0] != bound[0]:
                return None
            result = function(result, stored[0])
    return result


def _clip_interval(operands: Operands) -> Interval:
    low, high = operands.data[0]
    floor, ceiling = operands.interval(1)[0], operands.interval(2)[1]
    return min(max(low, floor), ceiling), min(max(high, floor), ceiling)


def gelu(x: Array, approximate: str) -> Array:
    """Gelu of ONNX, by the error function or its tanh approximation."""
    if approximate == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + np.asarray(erf(x / math.sqrt(2)), np.float64)))


def celu(x: Array, alpha: float) -> Array:
    """Celu of ONNX: max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    return np.where(x > 0, x, np.minimum(0, alpha * np.expm1(x / alpha)))


def selu(x: Array, alpha: float, gamma: float) -> Array:
    """Selu of ONNX: gamma * x above 0, gamma * alpha * (exp(x) - 1) below."""
    return np.asarray(gamma * np.where(x > 0, x, alpha * np.expm1(x)))


def shrink(x: Array, lambd: float, bias: float) -> Array:
    """Shrink of ONNX: x + bias below -lambd, x - bias above lambd, 0 between them."""
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0.0))


def _unary(
    name: str,
    function: Callable[..., Any],
    fold: Fold | None = None,
    bounds: Bounds = any_value,
    kernel: tuple[str, Callable[[Call, Quantization, Quantization], Array]] | None = None,
    attributes: Mapping[str, AttributeSpec] = MappingProxyType({}),
    **more: Any,
) -> Kind:
    """An operator that is a numpy function of its input and, by name, of its attributes; with the `arithmetic` of a kernel besides."""
    evaluate = on_values(function, attributes)
    if kernel is not None:
        evaluate, attributes = with_kernel(evaluate, kernel[1]), has(attributes, arithmetic=choice(("", kernel[0]), ""))
    return Kind(name, shape=same_shape, evaluate=evaluate, fold=fold, layout=ELEMENTWISE, bounds=bounds, attributes=attributes, **more)


_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
_ALPHA = has(alpha=number(1.0))
#: Kernels of these are off by some last bits of 1, not of their result, where that is next to zero: exp(x) - 1, and 1 / (1 + exp(-x)) by a
#: rational function (onnxruntime, LiteRT: up to 1.7e-7 between any two of them, in windows of 1e-5 to 1 around 37 places from -20 to 20).
_OFF_BY_BITS_OF_1 = 2e-2
#: x * (1 + erf(x / sqrt(2))) / 2 cancels where x is well below zero: it is off by 2^-24 of x, not of itself (up to 6.6e-7, likewise).
_OFF_BY_BITS_OF_X = 1e-1

KINDS = (
    _unary(
        "Abs",
        np.abs,
        numeric_fold(np.abs),
        fixed_bounds(0.0),
        preimage=lambda operands, wanted: [(0, -wanted[1], wanted[1])],
        rounds_once=True,
    ),
    _unary("Neg", np.negative, numeric_fold(np.negative), polynomial=lambda form: subtract_polynomials((), form), rounds_once=True),
    _unary("Exp", np.exp, None, fixed_bounds(0.0)),
    _unary("Log", np.log, domain=of_positive_data(), cancels_below=_OFF_BY_BITS_OF_1),
    _unary(
        "Sqrt",
        np.sqrt,
        lambda call: numeric_fold(np.sqrt)(call) if call.raw().dtype.kind == "f" else None,
        fixed_bounds(0.0),
        ("tflite", _square_root_by_tflite),
        domain=of_positive_data(0.0),
        power=0.5,
        rounds_once=True,
    ),
    _unary("Rsqrt", lambda x: 1 / np.sqrt(x), None, fixed_bounds(0.0), domain=_above_zero, power=-0.5),
    _unary("Square", np.square, numeric_fold(np.square), fixed_bounds(0.0), power=2.0, rounds_once=True),
    _unary("Reciprocal", lambda x: 1 / x, domain=of_positive_data(), power=-1.0, rounds_once=True),
    _unary("Erf", lambda x: np.asarray(erf(x), np.float64), None, fixed_bounds(-1.0, 1.0)),
    _unary("Round", np.rint, nearby=True, rounds_once=True),
    _unary("Floor", np.floor, nearby=True, rounds_once=True),
    _unary("Ceil", np.ceil, nearby=True, rounds_once=True),
    _unary("Sign", np.sign, numeric_fold(np.sign, floats=False), fixed_bounds(-1.0, 1.0), rounds_once=True),
    _unary("Sin", np.sin, None, fixed_bounds(-1.0, 1.0), cancels_below=_OFF_BY_BITS_OF_1),
    _unary("Cos", np.cos, None, fixed_bounds(-1.0, 1.0), cancels_below=_OFF_BY_BITS_OF_1),
    _unary("Tan", np.tan),
    _unary("Asin", np.arcsin),
    _unary("Acos", np.arccos),
    _unary("Atan", np.arctan),
    _unary("Sinh", np.sinh),
    _unary("Cosh", np.cosh, None, fixed_bounds(1.0)),
    _unary("Asinh", np.arcsinh),
    _unary("Acosh", np.arccosh),
    _unary("Atanh", np.arctanh),
    _unary("Relu", lambda x: np.maximum(x, 0), None, _at_least_zero, clips=True, keeps_range=True, scales_channels=True, rounds_once=True),
    Kind(
        "Clip",
        "data parameter? parameter?",
        bounds=_clip_interval,
        clips=True,
        keeps_range=True,
        shape=same_shape,
        evaluate=clip,
        fold=_clip_fold,
        layout=ELEMENTWISE,
        rounds_once=True,
    ),
    _unary(
        "HardSwish",
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        kernel=("tflite_hard_swish", lambda call, given, output: tflite_hard_swish(call.raw(), given, output, call.results[0].dtype)),
        cancels_below=_OFF_BY_BITS_OF_1,
    ),
    _unary(
        "HardSigmoid",
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        None,
        fixed_bounds(0.0, 1.0),
        attributes=has(alpha=number(0.2), beta=number(0.5)),
    ),
    _unary(
        "LeakyRelu",
        lambda x, alpha: np.where(x < 0, alpha * x, x),
        kernel=(
            "xnnpack_line",
            lambda call, given, output: xnnpack_leaky_relu(call.raw(), given, output, call.results[0].dtype, float(call["alpha"])),
        ),
        attributes=has(alpha=number(0.01)),
        scales_channels=True,
        rounds_once=True,
    ),
    _unary("Elu", lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x), attributes=_ALPHA, cancels_below=_OFF_BY_BITS_OF_1),
    _unary("Celu", celu, attributes=_ALPHA, cancels_below=_OFF_BY_BITS_OF_1),
    _unary("Selu", selu, attributes=has(alpha=number(_SELU_ALPHA), gamma=number(_SELU_GAMMA)), cancels_below=_OFF_BY_BITS_OF_1),
    _unary("ThresholdedRelu", lambda x, alpha: np.where(x > alpha, x, 0.0), attributes=_ALPHA, rounds_once=True),
    _unary("Shrink", shrink, attributes=has(lambd=number(0.5), bias=number(0.0))),
    _unary("Swish", lambda x, alpha: x * sigmoid(alpha * x), attributes=_ALPHA),
    _unary("Gelu", gelu, attributes=has(approximate=choice(("none", "tanh"), "none")), cancels_below=_OFF_BY_BITS_OF_X),
    _unary("Sigmoid", sigmoid, None, fixed_bounds(0.0, 1.0), cancels_below=_OFF_BY_BITS_OF_1),
    _unary("Tanh", np.tanh, None, fixed_bounds(-1.0, 1.0)),
    _unary("Softplus", softplus, None, fixed_bounds(0.0)),
    _unary("Softsign", lambda x: x / (1 + np.abs(x)), None, fixed_bounds(-1.0, 1.0)),
    _unary("Mish", lambda x: x * np.tanh(softplus(x))),
)
