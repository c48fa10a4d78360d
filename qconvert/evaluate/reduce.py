"""Reductions, running sums, and searches along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.evaluate.call import Call, Function
from qconvert.graph import Array

__all__ = ["FUNCTIONS"]


def _axes(call: Call) -> dict[str, Any]:
    """Arguments of a numpy reduction; no axes at all mean all of them, as in ONNX."""
    return {"axis": tuple(call.ints(1)) or None, "keepdims": bool(call["keepdims"])}


def _of_stored(function: Callable[..., Any]) -> Function:
    """A reduction that only chooses among stored values, or that is of plain values."""
    return lambda call: np.asarray(function(call.raw(), **_axes(call)))


def _sum(call: Call) -> tuple[Array, Array | float]:
    """The sum over the axes as (whole steps, scale)."""
    steps, scale = call.factor(0)
    return np.asarray(steps.sum(**_axes(call))), scale


def reduce_sum(call: Call) -> Array:
    """ReduceSum of ONNX; plain integers wrap."""
    if call.quantization() is None:
        return np.asarray(call.values().sum(**_axes(call)))
    total, scale = _sum(call)
    return np.asarray(total * scale)


def reduce_mean(call: Call) -> Array:
    """ReduceMean of ONNX; plain integers are divided towards zero."""
    count = math.prod(call.raw().shape[axis] for axis in call.ints(1) or range(call.raw().ndim))
    if call.quantization() is None and call.raw().dtype.kind in "iu":
        total = call.values().sum(**_axes(call))
        return np.asarray(np.sign(total) * (np.abs(total) // count))
    total, scale = _sum(call)
    return np.asarray(total / count * scale)


def reduce_l1(call: Call) -> Array:
    """ReduceL1 of ONNX: the sum of absolute values."""
    steps, scale = call.factor(0) if call.quantization() is not None else (call.values(), 1)
    return np.asarray(np.abs(steps).sum(**_axes(call)) * scale)


def reduce_sum_square(call: Call) -> Array:
    """ReduceSumSquare of ONNX: the sum of squares."""
    steps, scale = call.factor(0) if call.quantization() is not None else (call.values(), 1)
    return np.asarray(np.square(steps).sum(**_axes(call)) * (scale * scale))


def reduce_log_sum_exp(call: Call) -> Array:
    """ReduceLogSumExp of ONNX, log(sum(exp(x))), with the largest value taken out so that nothing overflows."""
    return np.asarray(np.logaddexp.reduce(call.values().astype(np.float64), **_axes(call)))


def cumulative_sum(call: Call) -> Array:
    """CumSum of ONNX, with its exclusive and reverse forms."""
    steps, scale = call.factor(0) if call.quantization() is not None else (call.values(), 1)
    axis = int(call["axis"])
    steps = np.flip(steps, axis) if call["reverse"] else steps
    total = np.cumsum(steps, axis)
    total = total - steps if call["exclusive"] else total
    return np.asarray((np.flip(total, axis) if call["reverse"] else total) * scale)


def _search(function: Callable[..., Any]) -> Function:
    """ArgMax and ArgMin: the first index of the extreme value."""
    return lambda call: np.asarray(function(call.values(), axis=call["axis"], keepdims=bool(call["keepdims"])))


def top_k(call: Call) -> list[Array]:
    """TopK of ONNX: of equal values the one with the lower index comes first."""
    data, axis = call.raw(), int(call["axis"])
    (k,) = call.ints(1)
    keys = data.astype(np.float64 if data.dtype.kind == "f" else np.int64)
    order = np.argsort(-keys if call["largest"] else keys, axis=axis, kind="stable")
    order = order.take(range(k), axis=axis)
    return [np.take_along_axis(data, order, axis), order]


FUNCTIONS: dict[str, Function] = {
    "ReduceMean": reduce_mean,
    "ReduceSum": reduce_sum,
    "ReduceProd": lambda call: np.asarray(call.values().prod(**_axes(call))),
    "ReduceL1": reduce_l1,
    "ReduceL2": lambda call: np.sqrt(reduce_sum_square(call)),
    "ReduceSumSquare": reduce_sum_square,
    "ReduceLogSum": lambda call: np.log(reduce_sum(call)),
    "ReduceLogSumExp": reduce_log_sum_exp,
    "ReduceMax": _of_stored(np.max),
    "ReduceMin": _of_stored(np.min),
    "ReduceAny": _of_stored(np.any),
    "ReduceAll": _of_stored(np.all),
    "ArgMax": _search(np.argmax),
    "ArgMin": _search(np.argmin),
    "CumSum": cumulative_sum,
    "TopK": top_k,
}
