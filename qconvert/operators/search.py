"""Searches: which elements are largest, smallest, or not zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op
from qconvert.operators.attributes import (
    KEEPDIMS,
    flag,
    has,
    integer,
    without_axes,
)
from qconvert.operators.call import (
    Call,
    Function,
)
from qconvert.operators.kind import Kind
from qconvert.operators.properties import ALONG_AXIS, MIXES, UNLESS_ALONG, Demand, Layout, Number, Operands, Suits, unless_along
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, Size, failure, stated_axis


def _arg_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.shape(0)
    if data is None:
        return [None]
    axis = stated_axis(op, len(data))
    if data[axis] == 0:
        raise failure(op, f"there is nothing to search along axis {axis} of shape {data}", rule="empty-axis")
    return [without_axes(op, data, [axis])]


def _topk_shape(op: Op, s: ShapeContext) -> Shapes:
    data, k = s.shape(0), s.ints(1)
    if data is None:
        return [None, None]
    axis = stated_axis(op, len(data))
    if k is not None and len(k) != 1:
        raise failure(op, f"k is {k}, not one number", rule="not-a-scalar")
    count: Size = UNKNOWN if k is None else k[0]
    size = data[axis]
    if isinstance(count, int) and (count < 0 or (isinstance(size, int) and count > size)):
        raise failure(op, f"k is {count}, but the axis has {size} elements", rule="too-many-elements")
    shape = (*data[:axis], count, *data[axis + 1 :])
    return [shape, shape]


def _non_zero_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.shape(0)
    return [None if data is None else (len(data), UNKNOWN)]


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


def unique(call: Call) -> list[Array]:
    """Unique of ONNX, unsorted: the different values in the order in which they come first, and for each element which one it is."""
    data = call.raw().reshape(-1)
    values, first, inverse = np.unique(data, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return [values[order], places[inverse.reshape(-1)]]


def _unique_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.shape(0)
    if data is not None and len(data) != 1:
        raise failure(op, f"data of shape {data} are not a vector", rule="wrong-rank")
    return [(UNKNOWN,), data]


def _count(operands: Operands, number: Number) -> Iterator[Demand]:
    yield 1, 1, operands.size(0, operands.op["axis"], number)


def _place_of(name: str, function: Callable[..., Any]) -> Kind:
    return Kind(name, samples=UNLESS_ALONG, ranks=True, compares=True, shape=_arg_shape, rule="index", evaluate=_search(function),
                layout=Layout(Suits.REDUCES), types="any -> index", attributes=has(KEEPDIMS, axis=integer(0)))  # fmt: skip


KINDS = (
    Kind("Unique", "data", "data index", samples=MIXES, shape=_unique_shape, rule="plain", evaluate=unique, types="T -> T index"),
    _place_of("ArgMax", np.argmax),
    _place_of("ArgMin", np.argmin),
    Kind(
        "TopK",
        "data index",
        "data index",
        samples=UNLESS_ALONG,
        domain=_count,
        ranks=True,
        shape=_topk_shape,
        rule="move",
        by_place=False,
        evaluate=top_k,
        layout=ALONG_AXIS,
        keeps_axis=unless_along,
        types="T any -> T index",
        attributes=has(axis=integer(-1), largest=flag(1), sorted=flag(1)),
    ),
    Kind(
        "NonZero",
        samples=MIXES,
        shape=_non_zero_shape,
        rule="index",
        evaluate=lambda call: np.array(np.nonzero(call.values())),
        types="any -> index",
    ),
)
