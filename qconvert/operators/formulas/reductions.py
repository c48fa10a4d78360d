"""Reductions, Softmax and norms along axes as formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import numpy_dtype
from qconvert.operators.formulas.formula import lowers
from qconvert.operators.values import (
    Value,
    absolute,
    apply,
    cast,
    dtype_of,
    exp,
    log,
    maximum,
    rank_of,
    reduce,
    shape_of,
    slice_along,
    sqrt,
    square,
    transpose,
)

__all__: list[str] = []


def _total(x: Value, axes: Value, keepdims: int, before: Callable[[Value], Value], after: Callable[[Value], Value]) -> Value:
    """A sum of a function of each element, and a function of the sum."""
    return after(apply("ReduceSum", before(x), axes, keepdims=keepdims))


def _itself(x: Value) -> Value:
    return x


@lowers("ReduceL1")
def reduce_l1(x: Value, axes: Value = None, *, keepdims: int) -> Value:
    """The sum of magnitudes."""
    return _total(x, axes, keepdims, absolute, _itself)


@lowers("ReduceL2")
def reduce_l2(x: Value, axes: Value = None, *, keepdims: int) -> Value:
    """The root of the sum of squares."""
    return _total(x, axes, keepdims, square, sqrt)


@lowers("ReduceSumSquare")
def reduce_sum_square(x: Value, axes: Value = None, *, keepdims: int) -> Value:
    """The sum of squares."""
    return _total(x, axes, keepdims, square, _itself)


@lowers("ReduceLogSum")
def reduce_log_sum(x: Value, axes: Value = None, *, keepdims: int) -> Value:
    """The logarithm of the sum."""
    return _total(x, axes, keepdims, _itself, log)


@lowers("ReduceLogSumExp")
def reduce_log_sum_exp(x: Value, axes: Value = None, *, keepdims: int) -> Value:
    """max + log(sum(exp(x - max))), which does not overflow."""
    largest = apply("ReduceMax", x, axes, keepdims=1)
    centred = x - largest
    return _total(centred, axes, keepdims, exp, log) + (largest if keepdims else apply("ReduceMax", x, axes, keepdims=0))


@lowers("CumProd", in_float=True)
def exclusive_product(x: Value, *, axis: int, exclusive: int, reverse: int) -> Value:
    """The products up to each element of what stands 1 element before, a one being before the first."""
    size = _size_along(x, axis)
    if not exclusive or not size:
        return None
    return apply("CumProd", _shift_elements(x, 1, size, axis, reverse), axis=axis, reverse=reverse)


@lowers("CumProd", in_float=True)
def cumulative_product(x: Value, *, axis: int, reverse: int) -> Value:
    """Each element times the one 1 before it, then 2, 4 ... before it, ones being before the first (Hillis and Steele, 1986)."""
    size, value = _size_along(x, axis), x
    if not size:
        return None
    for power in range((size - 1).bit_length()):
        value = value * _shift_elements(value, 2**power, size, axis, reverse)
    return apply("Identity", x) if size == 1 else value


@lowers("Hardmax")
def hardmax(x: Value, *, axis: int) -> Value:
    """Where the place along the axis is that of the first largest element."""
    size, rank = _size_along(x, axis), rank_of(x) or 1
    if not size:
        return None
    places = np.arange(size, dtype=np.int64).reshape(-1, *[1] * (rank - 1 - axis % rank))
    return cast(apply("Equal", apply("ArgMax", x, axis=axis, keepdims=1), places), dtype_of(x))


def _size_along(x: Value, axis: int) -> int:
    """The size of an axis; 0 if it is not known."""
    shape = shape_of(x)
    size = shape[axis] if shape else None
    return size if isinstance(size, int) else 0


def _shift_elements(x: Value, by: int, size: int, axis: int, reverse: int) -> Value:
    """What stands `by` elements before each element, or after it, along an axis; ones where nothing stands."""
    rank = rank_of(x) or 0
    pads = np.zeros((2, rank), np.int64)
    pads[int(bool(reverse)), axis % rank] = by
    kept = slice_along(x, by, None, axis) if reverse else slice_along(x, 0, size - by, axis)
    return apply("Pad", kept, pads.reshape(-1), np.ones((), numpy_dtype(dtype_of(x))))


@lowers("Softmax")
def softmax(x: Value, *, axis: int, beta: float) -> Value:
    """Softmax(x * beta)."""
    return None if beta == 1.0 else apply("Softmax", x * beta, axis=axis)


@lowers("Softmax")
def softmax_along_last(x: Value, *, axis: int, beta: float) -> Value:
    """Along the last axis, between two Transposes."""
    return _along_last("Softmax", x, axis, beta=beta)


@lowers("LogSoftmax")
def log_softmax_along_last(x: Value, *, axis: int) -> Value:
    """Along the last axis, between two Transposes."""
    return _along_last("LogSoftmax", x, axis)


@lowers("LpNormalization")
def lp_normalization(x: Value, *, axis: int, p: int) -> Value:
    """x over its norm along the axis; a vector of zeros stays."""
    if p not in (1, 2):
        return None
    norm = reduce("ReduceL1" if p == 1 else "ReduceL2", x, [axis])
    return x / maximum(norm, float(np.finfo(np.float32).tiny))


@lowers("LpNormalization")
def lp_normalization_along_last(x: Value, *, axis: int, p: int) -> Value:
    """The Euclidean norm along the last axis, between two Transposes."""
    return _along_last("LpNormalization", x, axis, p=p) if p == 2 else None


def _along_last(kind: str, x: Value, axis: int, **attributes: Any) -> Value:
    """An operator along the last axis in place of one along another; None if that is the last one, or the rank is not known."""
    rank = rank_of(x)
    if rank is None or axis % max(rank, 1) == rank - 1:
        return None
    order = [*(place for place in range(rank) if place != axis % rank), axis % rank]
    return transpose(apply(kind, transpose(x, order), axis=-1, **attributes), [order.index(place) for place in range(rank)])
