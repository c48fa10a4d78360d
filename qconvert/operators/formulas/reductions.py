"""Reductions, Softmax and norms along axes as formulas."""

from __future__ import annotations

from collections.abc import Callable

from qconvert.operators.formulas.formula import lowers
from qconvert.operators.values import Value, absolute, apply, exp, log, rank_of, reduce, sqrt, square, transpose, where

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
    centred = x - apply("ReduceMax", x, axes, keepdims=1)
    return _total(centred, axes, keepdims, exp, log) + apply("ReduceMax", x, axes, keepdims=keepdims)


@lowers("Softmax")
def softmax(x: Value, *, axis: int, beta: float) -> Value:
    """Softmax(x * beta)."""
    return None if beta == 1.0 else apply("Softmax", x * beta, axis=axis)


@lowers("Softmax")
def softmax_along_last(x: Value, *, axis: int, beta: float) -> Value:
    """Along the last axis, between two Transposes."""
    order = _last(x, axis)
    return None if order is None else transpose(apply("Softmax", transpose(x, order), axis=-1, beta=beta), order)


@lowers("LogSoftmax")
def log_softmax_along_last(x: Value, *, axis: int) -> Value:
    """Along the last axis, between two Transposes."""
    order = _last(x, axis)
    return None if order is None else transpose(apply("LogSoftmax", transpose(x, order), axis=-1), order)


@lowers("LpNormalization")
def lp_normalization(x: Value, *, axis: int, p: int) -> Value:
    """x over its norm along the axis; a vector of zeros stays."""
    if p not in (1, 2):
        return None
    norm = reduce("ReduceL1" if p == 1 else "ReduceL2", x, [axis])
    return x / where(apply("Equal", norm, 0.0), 1.0, norm)


def _last(x: Value, axis: int) -> list[int] | None:
    """The order of axes that exchanges an axis with the last one; None if it is the last one, or the rank is not known."""
    rank = rank_of(x)
    if rank is None or axis % max(rank, 1) == rank - 1:
        return None
    order = list(range(rank))
    order[axis % rank], order[-1] = order[-1], order[axis % rank]
    return order
