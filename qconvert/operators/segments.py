"""Rows that are put, or added up, at places that other inputs say; diagonals, and gaps between elements; windows of any number of axes:
sums and extremes of them, and windows that are cut out of data at places that are given."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op, Shape
from qconvert.operators.attributes import choice, has, integer, integers
from qconvert.operators.call import Call
from qconvert.operators.kind import Kind
from qconvert.operators.properties import MIXES, WHEREVER, Demand, Number, Operands, before_last
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, Size, failure, window_extent

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
        yield 1, 0, int(count.flat[0]) - 1


def _matrix_diag_shape(op: Op, s: ShapeContext) -> Shapes:
    shape = s.shape(0)
    if shape is not None and not shape:
        raise failure(op, "a scalar is not a diagonal", rule="wrong-rank")
    return [None if shape is None else (*shape, shape[-1])]


def matrix_diag(call: Call) -> Array:
    """Matrices of zeros with the data on their diagonals."""
    data = call.raw()
    return np.asarray(np.where(np.eye(data.shape[-1], dtype=bool), data[..., None], np.zeros((), data.dtype)))


def _set_diag_shape(op: Op, s: ShapeContext) -> Shapes:
    shape, diagonal = s.shape(0), s.shape(1)
    if shape is not None and len(shape) < 2:
        raise failure(op, f"data of shape {shape} are not matrices", rule="wrong-rank")
    if shape is not None and diagonal is not None and all(isinstance(size, int) for size in (*shape, *diagonal)):
        if tuple(diagonal) != (*shape[:-2], min(int(size) for size in shape[-2:])):
            raise failure(op, f"a diagonal of shape {diagonal} for matrices of shape {shape}", rule="shape-mismatch")
    return [shape]


def matrix_set_diag(call: Call) -> Array:
    """The matrices with other diagonals."""
    result, diagonal = call.raw().copy(), call.raw(1)
    places = np.arange(min(result.shape[-2:]))
    result[..., places, places] = diagonal
    return result


def _interior_shape(op: Op, s: ShapeContext) -> Shapes:
    shape = s.known_shape(0)
    lists = [op[name] for name in ("low", "high", "interior")]
    if any(len(values) != len(shape) for values in lists) or min(op["interior"], default=0) < 0:
        raise failure(op, f"gaps {lists} do not fit data of shape {shape}", rule="shape-mismatch")
    result: list[Size] = []
    for size, low, high, gap in zip(shape, *lists, strict=True):
        result.append(UNKNOWN if isinstance(size, str) else max(size + max(size - 1, 0) * gap + low + high, 0))
    return [tuple(result)]


def interior_pad(call: Call) -> Array:
    """(data, filler): `interior` fillers between neighbours of each axis, then `low` in front and `high` after; less than 0 cuts off."""
    data, filler = call.raw(), call.raw(1).reshape(())
    inner = [size + max(size - 1, 0) * gap for size, gap in zip(data.shape, call["interior"], strict=True)]
    result = np.full(inner, filler, data.dtype)
    result[tuple(slice(None, None, gap + 1) for gap in call["interior"])] = data
    result = np.pad(result, [(max(a, 0), max(b, 0)) for a, b in zip(call["low"], call["high"], strict=True)], constant_values=filler)
    cuts = zip(call["low"], call["high"], result.shape, strict=True)
    return np.asarray(result[tuple(slice(max(-a, 0), max(size + min(b, 0), 0)) for a, b, size in cuts)])


_COMBINED: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "all": np.logical_and,
                             "any": np.logical_or}  # fmt: skip
#: What is made of the elements of a window.
FUNCTIONS = tuple(_COMBINED)
_LISTS = ("window", "strides", "dilations")


def _window_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.known_shape(0)
    if any(len(op[name]) != len(data) or min(op[name], default=1) < 1 for name in _LISTS):
        raise failure(op, f"a window of {[tuple(op[name]) for name in _LISTS]} does not fit data of shape {data}", rule="window-too-large")
    steps = zip(data, *(op[name] for name in _LISTS), strict=True)
    return [tuple(UNKNOWN if isinstance(size, str) else count_windows(size, *step) for size, *step in steps)]


def count_windows(size: int, taps: int, stride: int, dilation: int) -> int:
    """How many windows of so many taps fit along an axis."""
    return max((size - window_extent(taps, dilation)) // stride + 1, 0)


def reduce_window(call: Call) -> Array:
    """(data, first value): the first value combined with every element of each window."""
    data, first = call.raw(), call.raw(1).reshape(())
    steps = zip(data.shape, call["window"], call["strides"], call["dilations"], strict=True)
    sizes = [count_windows(*step) for step in steps]
    total = np.full(sizes, first)
    with np.errstate(over="ignore"):
        for at in product(*map(range, call["window"])):
            starts = [i * d for i, d in zip(at, call["dilations"], strict=True)]
            spans = zip(starts, sizes, call["strides"], strict=True)
            part = data[tuple(slice(start, start + (n - 1) * stride + 1 if n else start, stride) for start, n, stride in spans)]
            total = _COMBINED[call["function"]](total, part).astype(data.dtype)
    return np.asarray(total)


def _start_gather_shape(op: Op, s: ShapeContext) -> Shapes:
    data, starts = s.known_shape(0), s.known_shape(1)
    sizes, collapsed, offsets = op["slice_sizes"], op["collapsed_dims"], op["offset_dims"]
    axis = int(op["index_vector_dim"])
    numbers = [size for size in data if isinstance(size, int)]
    vector = starts[axis] if axis < len(starts) else 1
    fits = len(sizes) == len(data) == len(numbers) and all(a <= b for a, b in zip(sizes, numbers, strict=True))
    if (not fits or not 0 <= axis <= len(starts)
            or vector != len(op["start_index_map"]) or len(offsets) != len(sizes) - len(collapsed)
            or not {*op["start_index_map"], *collapsed} <= {*range(len(data))} or any(sizes[i] != 1 for i in collapsed)):  # fmt: skip
        raise failure(
            op, f"windows of {tuple(sizes)} do not fit data of shape {data} and starts of shape {starts}", rule="window-too-large"
        )
    batch = list(starts[:axis] + starts[axis + 1 :])
    windows = [size for i, size in enumerate(sizes) if i not in collapsed]
    rank = len(batch) + len(windows)
    if sorted({*offsets}) != sorted(offsets) or not {*offsets} <= {*range(rank)}:
        raise failure(op, f"windows at axes {tuple(offsets)} of {rank}", rule="axis-out-of-range")
    return [tuple(windows.pop(0) if i in offsets else batch.pop(0) for i in range(rank))]


def start_gather(call: Call) -> Array:
    """Windows of the data, one for each start, which is moved until its window fits (StableHLO's gather)."""
    data, starts = call.raw(), call.raw(1).astype(np.int64)
    axis = call["index_vector_dim"]
    starts = np.moveaxis(starts, axis, -1) if axis < starts.ndim else starts[..., None]
    sizes = call["slice_sizes"]
    result = []
    for row in (starts[at] for at in np.ndindex(starts.shape[:-1])):
        at = [0] * data.ndim
        for value, place in zip(row, call["start_index_map"], strict=True):
            at[place] = min(max(int(value), 0), data.shape[place] - sizes[place])
        result.append(data[tuple(slice(a, a + n) for a, n in zip(at, sizes, strict=True))])
    kept = [n for i, n in enumerate(sizes) if i not in call["collapsed_dims"]]
    stacked = np.array(result, data.dtype).reshape(*starts.shape[:-1], *kept)
    count = starts.ndim - 1
    return np.moveaxis(stacked, range(count, stacked.ndim), call["offset_dims"])


KINDS = (
    Kind("SegmentSum", "data index", samples=MIXES, shape=_segment_sum_shape, rule="plain", types="T any -> T",
         evaluate=_segments(lambda call: "sum", lambda call: int(call.raw(1).max(initial=-1)) + 1)),
    Kind("UnsortedSegment", "data index index", samples=MIXES, domain=_segment_ids, shape=_unsorted_shape, rule="plain",
         types="T any any -> T",
         evaluate=_segments(lambda call: str(call["reduction"]), lambda call: call.ints(2)[0]),
         attributes=has(reduction=choice(REDUCTIONS))),
    Kind("DynamicUpdateSlice", "data data index", samples=MIXES, shape=_update_shape, rule="move", evaluate=dynamic_update_slice),
    Kind("SparseToDense", "index index data filler", samples=MIXES, shape=_sparse_shape, rule="move", evaluate=sparse_to_dense),
    Kind("MatrixDiag", samples=before_last(1), shape=_matrix_diag_shape, rule="plain", evaluate=matrix_diag, types="T -> T"),
    Kind("MatrixSetDiag", "data data", samples=before_last(2), shape=_set_diag_shape, rule="move", evaluate=matrix_set_diag),
    Kind("InteriorPad", "data filler", samples=WHEREVER, shape=_interior_shape, rule="move", evaluate=interior_pad,
         attributes=has(low=integers(), high=integers(), interior=integers())),
    Kind("ReduceWindow", "data filler", samples=MIXES, shape=_window_shape, rule="plain", evaluate=reduce_window, types="T T -> T",
         attributes=has({name: integers() for name in _LISTS}, function=choice(FUNCTIONS))),
    Kind("StartGather", "data index", samples=MIXES, shape=_start_gather_shape, rule="move", evaluate=start_gather,
         attributes=has(offset_dims=integers(), collapsed_dims=integers(), start_index_map=integers(), index_vector_dim=integer(),
                        slice_sizes=integers())),
)  # fmt: skip
