"""Functions of single elements, without parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import numpy as np

from qconvert.arithmetic import dequantize, saturate, tflite_hard_swish
from qconvert.arithmetic.polynomials import subtract_polynomials
from qconvert.arithmetic.storage import Array
from qconvert.operators.attributes import (
    choice,
    has,
    same_shape,
)
from qconvert.operators.call import (
    Call,
    ExactResult,
    Fold,
    Result,
    numeric_fold,
    on_values,
)
from qconvert.operators.kind import Kind, More, kind
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

__all__ = ["KINDS", "erf", "sigmoid"]

erf = np.frompyfunc(math.erf, 1, 1)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return np.logaddexp(x, 0.0)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


def square_root(call: Call) -> Result:
    """Sqrt; with the arithmetic "tflite" the stored result is that of TFLite's kernel, which drops the fraction after a division in
    float32 (elementwise.cc).
    """
    real, given, output = np.asarray(np.sqrt(call.values())), call.quantization(), call.results[0].quantization
    if call["arithmetic"] != "tflite" or given is None or output is None:
        return real
    root = np.sqrt(dequantize(call.raw(), given).astype(np.float32))
    steps = np.nan_to_num(np.floor(root / np.float32(output.scale[0])))
    return ExactResult(real, saturate(steps.astype(np.float64) + int(output.zero_point[0]), call.results[0].dtype))


def _at_least_zero(operands: Operands) -> Interval:
    ((low, high),) = operands.data
    return max(low, 0.0), max(high, 0.0)


def _above_zero(operands: Operands, number: Number) -> Iterator[Demand]:
    """Kernels refuse to run on quantized data that are not positive (TFLite's elementwise.cc)."""
    tensor = operands.tensor(0)
    q = None if tensor is None else tensor.quantization
    yield 0, POSITIVE if q is None else float(q.scale.max()), math.inf


def hard_swish(call: Call) -> Array | ExactResult:
    """HardSwish of ONNX; with an arithmetic the stored integers are those of its kernel."""
    values = call.values()
    real, (result,), given = np.asarray(values * np.clip(values / 6 + 0.5, 0, 1)), call.results, call.quantization()
    if not call["arithmetic"] or given is None or result.quantization is None:
        return real
    return ExactResult(real, tflite_hard_swish(call.raw(), given, result.quantization, result.dtype))


def _unary(name: str, function: Callable[[Array], Any], fold: Fold | None = None, bounds: Bounds = any_value, **more: Unpack[More]) -> Kind:
    """An operator that is a numpy function of its input."""
    return kind(name, shape=same_shape, evaluate=on_values(function), fold=fold, layout=ELEMENTWISE,
                bounds=bounds, **more)  # fmt: skip


KINDS = (
    _unary("Abs", np.abs, numeric_fold(np.abs), fixed_bounds(0.0), preimage=lambda operands, wanted: iter([(0, -wanted[1], wanted[1])])),
    _unary("Neg", np.negative, numeric_fold(np.negative), polynomial=lambda form: subtract_polynomials((), form)),
    _unary("Exp", np.exp, None, fixed_bounds(0.0)),
    _unary("Log", np.log, domain=of_positive_data()),
    kind(
        "Sqrt",
        shape=same_shape,
        evaluate=square_root,
        bounds=fixed_bounds(0.0),
        domain=of_positive_data(0.0),
        fold=lambda call: numeric_fold(np.sqrt)(call) if call.raw().dtype.kind == "f" else None,
        layout=ELEMENTWISE,
        attributes=has(arithmetic=choice(("", "tflite"), "")),
    ),
    _unary("Rsqrt", lambda x: 1 / np.sqrt(x), None, fixed_bounds(0.0), domain=_above_zero),
    _unary("Square", np.square, numeric_fold(np.square), fixed_bounds(0.0)),
    _unary("Reciprocal", lambda x: 1 / x, domain=of_positive_data()),
    _unary("Erf", lambda x: np.asarray(erf(x), np.float64), None, fixed_bounds(-1.0, 1.0)),
    _unary("Round", np.rint, nearby=True),
    _unary("Floor", np.floor, nearby=True),
    _unary("Ceil", np.ceil, nearby=True),
    _unary("Sign", np.sign, numeric_fold(np.sign, floats=False), fixed_bounds(-1.0, 1.0)),
    _unary("Sin", np.sin, None, fixed_bounds(-1.0, 1.0)),
    _unary("Cos", np.cos, None, fixed_bounds(-1.0, 1.0)),
    _unary("Tan", np.tan),
    _unary("Asin", np.arcsin),
    _unary("Acos", np.arccos),
    _unary("Atan", np.arctan),
    _unary("Sinh", np.sinh),
    _unary("Cosh", np.cosh, None, fixed_bounds(1.0)),
    _unary("Asinh", np.arcsinh),
    _unary("Acosh", np.arccosh),
    _unary("Atanh", np.arctanh),
    _unary("Relu", lambda x: np.maximum(x, 0), None, _at_least_zero, clips=True, keeps_range=True, scales_channels=True),
    kind(
        "HardSwish",
        shape=same_shape,
        evaluate=hard_swish,
        bounds=any_value,
        layout=ELEMENTWISE,
        attributes=has(arithmetic=choice(("", "tflite_hard_swish"), "")),
    ),
    _unary("Sigmoid", sigmoid, None, fixed_bounds(0.0, 1.0)),
    _unary("Tanh", np.tanh, None, fixed_bounds(-1.0, 1.0)),
    _unary("Softplus", softplus, None, fixed_bounds(0.0)),
    _unary("Softsign", lambda x: x / (1 + np.abs(x)), None, fixed_bounds(-1.0, 1.0)),
    _unary("Mish", lambda x: x * np.tanh(softplus(x))),
)
