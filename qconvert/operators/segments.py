"""Rows that are put, or added up, at places that other inputs say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op, Shape
from qconvert.operators.attributes import choice, has
from qconvert.operators.call import Call
from qconvert.operators.kind import Kind
from qconvert.operators.properties import MIXES, Demand, Number, Operands
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, failure

_FUNCTIONS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
#: What a segment is made of its rows.
REDUCTIONS = tuple(_FUNCTIONS)


def _ids(op: Op, s: ShapeContext) -> Shape | None:
    """The shape of the data, whose first axis the ids number."""
    data, ids = s.shape(0), s.shape(1)
    if data is not None and ids is not None:
        sizes = [(a, b) for a, b in zip(data, ids, strict=False) if isinstance(a, int) and isinstance(b, int)]
        if len(ids) > len(data) or not data or any(a != b for a, b in sizes):
            raise failure(op, f"segments {ids} of data of shape {data}", rule="shape-mismatch")
    return None if data is None or ids is None else data[len(ids) :]


def _segment_sum_shape(op: Op, s: ShapeContext) -> Shapes:
    rest, ids, shape = _ids(op, s), s.ints(1), s.shape(1)
    if shape is not None and len(shape) != 1:
        raise failure(op, f"segments of shape {shape}, which are not a vector", rule="wrong-rank")
    if ids is not None and (any(a > b for a, b in itertools.pairwise(ids)) or (ids and ids[0] < 0)):
        raise failure(op, "the segments are not sorted", rule="not-sorted")
    return [None if rest is None else (UNKNOWN if ids is None else ids[-1] + 1 if ids else 0, *rest)]


def _unsorted_shape(op: Op, s: ShapeContext) -> Shapes:
    rest, count, shape = _ids(op, s), s.ints(2), s.shape(2)
    if shape is not None and any(isinstance(size, int) and size != 1 for size in shape):
        raise failure(op, f"the number of segments has shape {shape}; it must be a scalar", rule="not-a-scalar")
    if count is not None and (len(count) != 1 or count[0] < 0):
        raise failure(op, f"the number of segments is {count}; it must be at least 0", rule="negative-size")
    return [None if rest is None else (UNKNOWN if count is None else count[0], *rest)]


def first_value(reduction: str, dtype: np.dtype[Any]) -> Any:
    """What a segment without rows holds: TFLite's kernels have the lowest value for the largest, and the other way round."""
    if reduction in ("sum", "prod"):
        return np.asarray(int(reduction == "prod"), dtype)
    info: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return np.asarray(info.min if reduction == "max" else info.max, dtype)


def _segments(reduction: Callable[[Call], str], count: Callable[[Call], int]) -> Callable[[Call], Array]:
    def evaluate(call: Call) -> Array:
        data, ids, rows = call.raw(), call.raw(1).astype(np.int64), count(call)
        name = reduction(call)
        result = np.full((rows, *data.shape[ids.ndim :]), first_value(name, data.dtype))
        kept = ids >= 0
        _FUNCTIONS[name].at(result, ids[kept], data[kept])
        return result

    return evaluate


def _update_shape(op: Op, s: ShapeContext) -> Shapes:
    data, update = s.shape(0), s.shape(1)
    if data is not None and update is not None:
        sizes = [(a, b) for a, b in zip(data, update, strict=False) if isinstance(a, int) and isinstance(b, int)]
        if len(data) != len(update) or any(a < b for a, b in sizes):
            raise failure(op, f"an update of shape {update} does not fit data of shape {data}", rule="shape-mismatch")
    return [data]


def dynamic_update_slice(call: Call) -> Array:
    """The data with a block in its place; a start at which it would hang over is moved until it fits."""
    data, update = call.raw(), call.raw(1)
    starts = [min(max(start, 0), a - b) for start, a, b in zip(call.ints(2), data.shape, update.shape, strict=True)]
    result = data.copy()
    result[tuple(slice(start, start + size) for start, size in zip(starts, update.shape, strict=True))] = update
    return result


def _sparse_shape(op: Op, s: ShapeContext) -> Shapes:
    sizes = s.ints(1)
    if sizes is not None and min(sizes, default=0) < 0:
        raise failure(op, f"a shape of {sizes}", rule="invalid-shape")
    return [s.unknowns(1) if sizes is None else tuple(sizes)]


def sparse_to_dense(call: Call) -> Array:
    """(indices, shape, values, default): values, or one for all, at the indices, which are rows, single numbers or one."""
    indices, values = call.raw(0).astype(np.int64), call.raw(2)
    result = np.full(call.ints(1), call.raw(3).reshape(()), values.dtype)
    rows = indices.reshape(-1, 1) if indices.ndim < 2 else indices
    result[tuple(rows.T)] = values.reshape(-1) if values.ndim else values
    return result


def _segment_ids(operands: Operands, number: Number) -> Iterator[Demand]:
    count = operands.constant(2)
    if count is not None and count.size == 1:
        yield 1, 0, int(count.reshape(-1)[0]) - 1


KINDS = (
    Kind("SegmentSum", "data index", samples=MIXES, shape=_segment_sum_shape, rule="plain", types="T any -> T",
         evaluate=_segments(lambda call: "sum", lambda call: int(call.raw(1).max(initial=-1)) + 1)),
    Kind("UnsortedSegment", "data index index", samples=MIXES, domain=_segment_ids, shape=_unsorted_shape, rule="plain",
         types="T any any -> T",
         evaluate=_segments(lambda call: str(call["reduction"]), lambda call: call.ints(2)[0]),
         attributes=has(reduction=choice(REDUCTIONS))),
    Kind("DynamicUpdateSlice", "data data index", samples=MIXES, shape=_update_shape, rule="move", evaluate=dynamic_update_slice),
    Kind("SparseToDense", "index index data filler", samples=MIXES, shape=_sparse_shape, rule="move", evaluate=sparse_to_dense),
)  # fmt: skip
