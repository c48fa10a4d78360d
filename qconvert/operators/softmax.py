"""Functions of all elements along an axis."""

from __future__ import annotations

import math

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.operators.attributes import has, integer, number
from qconvert.operators.bounds import between
from qconvert.operators.call import (
    Call,
    activated,
)
from qconvert.operators.canonical import with_last_axis
from qconvert.operators.common import (
    ACTIVATION,
    along_axis,
)
from qconvert.operators.kind import kind
from qconvert.operators.layout import ALONG_AXIS
from qconvert.operators.samples import UNLESS_ALONG

__all__ = ["KINDS"]


def softmax(call: Call) -> Array:
    """exp(beta * x) over its sum along the axis."""
    axis = call["axis"]
    x = call["beta"] * call.values()
    raised = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(raised / raised.sum(axis=axis, keepdims=True))


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
    return activated(np.asarray(x / np.where(norm == 0, 1, norm)), call["activation"])


KINDS = (
    kind(
        "Softmax",
        samples=UNLESS_ALONG,
        bounds=between(0.0, 1.0),
        canonical=with_last_axis,
        shape=along_axis,
        evaluate=softmax,
        layout=ALONG_AXIS,
        attributes=has(axis=integer(-1), beta=number(1.0)),
    ),
    kind(
        "LogSoftmax",
        samples=UNLESS_ALONG,
        bounds=between(-math.inf, 0.0),
        canonical=with_last_axis,
        shape=along_axis,
        evaluate=log_softmax,
        layout=ALONG_AXIS,
        attributes=has(axis=integer(-1)),
    ),
    kind(
        "Hardmax",
        samples=UNLESS_ALONG,
        bounds=between(0.0, 1.0),
        canonical=with_last_axis,
        shape=along_axis,
        rule="plain",
        evaluate=hardmax,
        layout=ALONG_AXIS,
        types="T -> T",
        attributes=has(axis=integer(-1)),
    ),
    kind(
        "LpNormalization",
        samples=UNLESS_ALONG,
        bounds=between(-1.0, 1.0),
        shape=along_axis,
        evaluate=lp_normalization,
        layout=ALONG_AXIS,
        attributes=has(ACTIVATION, axis=integer(-1), p=integer(2)),
    ),
)
