"""Functions of all elements along an axis."""

from __future__ import annotations

import math

import numpy as np

from qconvert.arithmetic import saturate, softmax_steps
from qconvert.arithmetic.storage import Array, Quantization
from qconvert.operators.attributes import AttributeSpec, along_axis, choice, has, integer, number
from qconvert.operators.call import Call, Function, with_kernel
from qconvert.operators.kind import Kind
from qconvert.operators.properties import ALONG_AXIS, UNLESS_ALONG, Bounds, fixed_bounds, with_last_axis


def softmax(call: Call) -> Array:
    """exp(beta * x) over its sum along the axis."""
    axis, x = call["axis"], call["beta"] * call.values()
    raised = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(raised / raised.sum(axis=axis, keepdims=True))


def _softmax_by_tflite(call: Call, given: Quantization, output: Quantization) -> Array:
    scale = given.scale[0] * np.float32(call["beta"])
    steps = softmax_steps(call.raw().astype(np.int64), scale, output.scale[0], call["axis"])
    return saturate(steps + output.point, call.results[0].dtype)


def hardmax(call: Call) -> Array:
    """Hardmax of ONNX: 1 at the first largest element along the axis, else 0."""
    values, axis = call.raw(), int(call["axis"])
    found = np.zeros_like(values)
    if values.size:
        np.put_along_axis(found, np.argmax(values, axis, keepdims=True), 1, axis)
    return found


def log_softmax(call: Call) -> Array:
    """The logarithm of Softmax."""
    axis, x = call["axis"], call.values()
    below = x - x.max(axis=axis, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis=axis, keepdims=True)))


def lp_normalization(call: Call) -> Array:
    """LpNormalization of ONNX: x over its norm along the axis; a vector of zeros stays."""
    x, order = call.values(), call["p"]
    norm = (np.abs(x) ** order).sum(axis=call["axis"], keepdims=True) ** (1 / order)
    return np.asarray(x / np.where(norm == 0, 1, norm))


def _along_axis(name: str, evaluate: Function, bounds: Bounds, *, rule: str = "real", types: str = "",
                **attributes: AttributeSpec) -> Kind:  # fmt: skip
    return Kind(name, samples=UNLESS_ALONG, bounds=bounds, canonical=with_last_axis, shape=along_axis, rule=rule, evaluate=evaluate,
                layout=ALONG_AXIS, types=types, attributes=has(axis=integer(-1), **attributes))  # fmt: skip


KINDS = (
    _along_axis(
        "Softmax",
        with_kernel(softmax, _softmax_by_tflite),
        fixed_bounds(0.0, 1.0),
        beta=number(1.0),
        arithmetic=choice(("", "tflite_softmax"), ""),
    ),
    _along_axis("LogSoftmax", log_softmax, fixed_bounds(-math.inf, 0.0)),
    _along_axis("Hardmax", hardmax, fixed_bounds(0.0, 1.0), rule="plain", types="T -> T"),
    Kind(
        "LpNormalization",
        samples=UNLESS_ALONG,
        bounds=fixed_bounds(-1.0, 1.0),
        shape=along_axis,
        evaluate=lp_normalization,
        layout=ALONG_AXIS,
        attributes=has(axis=integer(-1), p=integer(2)),
    ),
)
