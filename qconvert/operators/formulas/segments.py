"""Rows put, or added up, at places that other inputs say."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic.dtypes import numpy_dtype
from qconvert.operators.formulas.formula import lowers
from qconvert.operators.segments import first_value
from qconvert.operators.sizes import UNKNOWN
from qconvert.operators.values import (
    LARGEST_CONSTANT,
    Value,
    apply,
    cast,
    clip_indices,
    constant_of,
    dtype_of,
    rank_of,
    reshape,
    shape_of,
    slice_along,
    where,
)

__all__: list[str] = []

#: Types that are added up as they are; others wrap around in, or are exact in, one of them.
_ADDED = ("float32", "float64", "int32", "int64")


@lowers("SegmentSum")
def sums_of_segments(x: Value, ids: Value) -> Value:
    """Rows are added to zeros; the number of segments is that of the last row, and one."""
    ids = cast(ids, "int64")
    return _scatter_rows(x, ids, slice_along(ids, -1, None, 0) + 1, "sum")


@lowers("UnsortedSegment")
def segments_of_any_order(x: Value, ids: Value, count: Value, *, reduction: str) -> Value:
    """Rows are joined with first values. Those of negative segments go to one more segment, which is cut off."""
    ids, count = cast(ids, "int64"), reshape(cast(count, "int64"), [1])
    known = constant_of(ids)
    if known is not None and (known >= 0).all():
        return _scatter_rows(x, ids, count, reduction)
    found = _scatter_rows(x, where(apply("Less", ids, 0), count, ids), count + 1, reduction)
    return apply("Slice", found, np.array([0]), count, np.array([0]))


def _scatter_rows(x: Value, ids: Value, count: Value, reduction: str) -> Value:
    """The rows of x, which belong to `ids`, in `count` segments."""
    rank, dtype = rank_of(ids), dtype_of(x)
    if rank is None:
        return None
    wide = dtype if dtype in _ADDED else "float32" if "float" in dtype else "int64" if dtype in ("uint32", "uint64") else "int32"
    sizes = apply("Concat", count, slice_along(apply("Shape", x), rank, None, 0), axis=0)
    start = apply("Expand", first_value(reduction, np.dtype(numpy_dtype(dtype))).astype(numpy_dtype(wide)), sizes)
    places = apply("Unsqueeze", ids, np.array([-1]))
    kind = {"sum": "add", "prod": "mul"}.get(reduction, reduction)
    return cast(apply("ScatterND", start, places, cast(x, wide), reduction=kind), dtype)


@lowers("DynamicUpdateSlice")
def update_at_rows(x: Value, update: Value, starts: Value) -> Value:
    """Rows of the axes up to the last along which the update is shorter than the data are put at their places."""
    shape, sizes = shape_of(x), shape_of(update)
    if shape is None or sizes is None:
        return None
    axes = max((axis + 1 for axis, (a, b) in enumerate(zip(shape, sizes, strict=True)) if a != b or a == UNKNOWN), default=0)
    if axes == 0:
        return update
    starts = cast(starts, "int64")
    starts = starts if axes == len(shape) else slice_along(starts, 0, axes, 0)
    front, block = [size for size in shape[:axes] if isinstance(size, int)], [size for size in sizes[:axes] if isinstance(size, int)]
    if len(front) == len(block) == axes and np.prod(block) <= LARGEST_CONSTANT:
        last = np.array(front, np.int64) - np.array(block, np.int64)
        quantization = np.moveaxis(np.indices(block), 0, -1).astype(np.int64)
        return apply("ScatterND", x, clip_indices(starts, last) + quantization, update)
    whole = apply("Shape", update)
    counts = slice_along(whole, 0, axes, 0)
    last = slice_along(apply("Shape", x), 0, axes, 0) - counts
    quantization = apply("Transpose", apply("NonZero", apply("Expand", np.ones((), bool), counts)), perm=(1, 0))
    if axes > 1:  # the places are a list, and so must be the rows
        rest = [size for size in sizes[axes:] if isinstance(size, int)]
        if 0 in rest:
            return x
        is_known = len(rest) == len(sizes) - axes
        rows = np.array([-1, *rest]) if is_known else apply("Concat", np.array([-1]), slice_along(whole, axes, None, 0), axis=0)
        update = apply("Reshape", update, rows)
    return apply("ScatterND", x, clip_indices(starts, last) + quantization, update)


@lowers("SparseToDense")
def values_at_places(indices: Value, sizes: Value, values: Value, default: Value) -> Value:
    """Values, or one for all, are put into the default."""
    rank, value_rank = rank_of(indices), rank_of(values)
    if rank is None or value_rank is None:
        return None
    places = cast(indices, "int64")
    places = reshape(places, [-1, 1]) if rank < 2 else places
    if value_rank == 0:
        values = apply("Expand", values, slice_along(apply("Shape", places), 0, 1, 0))
    filler = default if rank_of(default) == 0 else reshape(default, [])
    return apply("ScatterND", apply("Expand", filler, cast(sizes, "int64")), places, values)
