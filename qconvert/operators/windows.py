"""Windows of any number of axes: sums and extremes of them, and windows that are cut out of data at places that are given."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op
from qconvert.operators.attributes import choice, has, integer, integers
from qconvert.operators.call import Call
from qconvert.operators.kind import Kind
from qconvert.operators.properties import MIXES
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, failure, window_extent

_COMBINED: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "all": np.logical_and,
                             "any": np.logical_or}  # fmt: skip
#: What is made of the elements of a window.
FUNCTIONS = tuple(_COMBINED)
_LISTS = ("window", "strides", "dilations")


def _window_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.shape(0)
    if data is None:
        return [None]
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
    data, starts = s.shape(0), s.shape(1)
    if data is None or starts is None:
        return [None]
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
    Kind("ReduceWindow", "data filler", samples=MIXES, shape=_window_shape, rule="plain", evaluate=reduce_window, types="T T -> T",
         attributes=has({name: integers() for name in _LISTS}, function=choice(FUNCTIONS))),
    Kind("StartGather", "data index", samples=MIXES, shape=_start_gather_shape, rule="move", evaluate=start_gather,
         attributes=has(offset_dims=integers(), collapsed_dims=integers(), start_index_map=integers(), index_vector_dim=integer(),
                        slice_sizes=integers())),
)  # fmt: skip
