"""Functions of single elements, without parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.arithmetic import dequantize, saturate
from qconvert.arithmetic.dtypes import Array
from qconvert.operators.attributes import choice, has
from qconvert.operators.call import (
    Call,
    ExactResult,
    Fold,
    Result,
)
from qconvert.operators.common import (
    same_shape,
)
from qconvert.operators.folds import (
    numeric,
)
from qconvert.operators.kind import Kind, kind
from qconvert.operators.layout import ELEMENTWISE

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


def _unary(name: str, function: Callable[[Array], Any], fold: Fold | None = None) -> Kind:
    """An operator that is a numpy function of its input."""
    return kind(name, shape=same_shape, evaluate=lambda call: np.asarray(function(call.values())), fold=fold, layout=ELEMENTWISE)


KINDS = (
    _unary("Abs", np.abs, numeric(np.abs)),
    _unary("Neg", np.negative, numeric(np.negative)),
    _unary("Exp", np.exp),
    _unary("Log", np.log),
    kind(
        "Sqrt",
        shape=same_shape,
        evaluate=square_root,
        fold=lambda call: numeric(np.sqrt)(call) if call.raw().dtype.kind == "f" else None,
        layout=ELEMENTWISE,
        attributes=has(arithmetic=choice(("", "tflite"), "")),
    ),
    _unary("Rsqrt", lambda x: 1 / np.sqrt(x)),
    _unary("Square", np.square, numeric(np.square)),
    _unary("Reciprocal", lambda x: 1 / x),
    _unary("Erf", lambda x: np.asarray(erf(x), np.float64)),
    _unary("Round", np.rint),
    _unary("Floor", np.floor),
    _unary("Ceil", np.ceil),
    _unary("Sign", np.sign, numeric(np.sign, floats=False)),
    _unary("Sin", np.sin),
    _unary("Cos", np.cos),
    _unary("Tan", np.tan),
    _unary("Asin", np.arcsin),
    _unary("Acos", np.arccos),
    _unary("Atan", np.arctan),
    _unary("Sinh", np.sinh),
    _unary("Cosh", np.cosh),
    _unary("Asinh", np.arcsinh),
    _unary("Acosh", np.arccosh),
    _unary("Atanh", np.arctanh),
    _unary("Relu", lambda x: np.maximum(x, 0)),
    _unary("HardSwish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    _unary("Sigmoid", sigmoid),
    _unary("Tanh", np.tanh),
    _unary("Softplus", softplus),
    _unary("Softsign", lambda x: x / (1 + np.abs(x))),
    _unary("Mish", lambda x: x * np.tanh(softplus(x))),
)
