"""Elements put, added up or taken at places, as formulas: rows at places that other inputs say, windows of any number of axes, triangles
and diagonals of matrices, and gaps between elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np

from qconvert.arithmetic.storage import numpy_dtype
from qconvert.operators.formulas.formula import lowers
from qconvert.operators.segments import count_windows, first_value
from qconvert.operators.sizes import UNKNOWN, reshape_sizes
from qconvert.operators.space import nearest_indices
from qconvert.operators.values import (
    FAR,
    LARGEST_CONSTANT,
    Value,
    apply,
    cast,
    clip_indices,
    constant_of,
    dtype_of,
    minimum,
    rank_of,
    reduce,
    reshape,
    shape_of,
    slice_along,
    static_shape_of,
    transpose,
    where,
)

#: Types that are added up as they are; others wrap around in, or are exact in, one of them.
_ADDED = ("float32", "float64", "int32", "int64")
#: Tensors that every runtime joins at once (tflite-micro, concatenation.cc: kMaxInputNum).
MOST_JOINED = 10


@lowers("Tile")
def copies_side_by_side(x: Value, repeats: Value) -> Value:
    """The data as often as is known, side by side along one axis after the other."""
    known = constant_of(repeats)
    if known is None or (known < 1).any():
        return None
    for axis, count in enumerate(known.reshape(-1).tolist()):
        x = _repeat_along(x, count, axis)
    return x


def _repeat_along(x: Value, count: int, axis: int) -> Value:
    """Return so many copies side by side; of many, halves are."""
    if count <= MOST_JOINED:
        return x if count == 1 else apply("Concat", *[x] * count, axis=axis)
    half = _repeat_along(x, count // 2, axis)
    return apply("Concat", half, half, *[x] * (count % 2), axis=axis)


@lowers("Concat")
def join_by_tens(*items: Value, axis: int) -> Value:
    """At most ten side by side, and these in their turn."""
    if len(items) <= MOST_JOINED:
        return None
    groups = [items[first : first + MOST_JOINED] for first in range(0, len(items), MOST_JOINED)]
    parts = [apply("Concat", *group, axis=axis) if len(group) > 1 else group[0] for group in groups]
    return apply("Concat", *parts, axis=axis)


@lowers("Transpose")
def axes_that_stay_together(x: Value, *, perm: Sequence[int]) -> Value:
    """Axes that stay next to each other are one, wherever those of size 1 go, for runtimes with Transposes of few axes."""
    shape = shape_of(x) or ()
    long = [axis for axis, size in enumerate(shape) if size != 1]
    order = [long.index(axis) for axis in perm if axis in long]
    firsts = sorted(axis for place, axis in enumerate(order) if not place or order[place - 1] != axis - 1)
    if not firsts or len(firsts) == len(shape):
        return None
    turned = transpose(_join_axes(x, [0, *(long[axis] for axis in firsts[1:])]), [firsts.index(axis) for axis in order if axis in firsts])
    return reshape(turned, reshape_sizes(shape[axis] for axis in perm))


@lowers("Slice")
def slice_of_joined_axes(x: Value, starts: Value, ends: Value, axes: Value, *steps: Value) -> Value:
    """Axes of which nothing is cut off are one with those before them, for runtimes with Slices of few axes."""
    shape, bounds = shape_of(x) or (), [constant_of(item) for item in (starts, ends, axes, *steps)]
    if any(item is None for item in bounds):
        return None
    rows = {int(row[2]) % len(shape): row for row in zip(*bounds, strict=True)}
    rows = {axis: row for axis, row in rows.items() if row[0] != 0 or row[1] < FAR or any(step != 1 for step in row[3:])}
    firsts = [axis for axis in range(len(shape)) if not axis or axis in rows or axis - 1 in rows]
    if not rows or len(firsts) == len(shape):
        return None
    cut = np.array(list(rows.values()), np.int64).T
    found = apply("Slice", _join_axes(x, firsts), cut[0], cut[1], np.array([firsts.index(axis) for axis in rows], np.int64), *cut[3:])
    sizes = shape_of(found) or ()
    return reshape(found, reshape_sizes(sizes[firsts.index(axis)] if axis in rows else size for axis, size in enumerate(shape)))


def _join_axes(x: Value, firsts: Sequence[int]) -> Value:
    """Return a value whose axes from each of `firsts` to the next are one."""
    shape = shape_of(x) or ()
    groups = [shape[first:end] for first, end in pairwise([*firsts, len(shape)])]
    return reshape(x, reshape_sizes("" if any(isinstance(size, str) for size in sizes) else math.prod(map(int, sizes)) for sizes in groups))


@lowers("Resize")
def nearest_by_indices(
    x: Value, sizes: Value, *, mode: str, coordinate_transformation_mode: str, nearest_mode: str, data_format: str
) -> Value:
    """The nearest elements along one spatial axis after the other, by indices that are known."""
    shape, known = shape_of(x) or (), constant_of(sizes)
    axes = range(1, len(shape) - 1) if data_format == "channels_last" else range(2, len(shape))
    if mode != "nearest" or known is None or not all(isinstance(shape[axis], int) for axis in axes):
        return None
    for axis, wanted in zip(axes, known.reshape(-1).tolist(), strict=True):
        x = apply("Gather", x, nearest_indices(int(shape[axis]), wanted, coordinate_transformation_mode, nearest_mode), axis=axis)
    return x


@lowers("Resize")
def linear_between_half_pixels(
    x: Value, sizes: Value, *, mode: str, coordinate_transformation_mode: str, nearest_mode: str, data_format: str
) -> Value:
    """Sizes that are whole numbers give the factors, for which half_pixel_symmetric is half_pixel."""
    if mode != "linear" or coordinate_transformation_mode != "half_pixel_symmetric":
        return None
    return apply("Resize", x, sizes, mode=mode, coordinate_transformation_mode="half_pixel", nearest_mode=nearest_mode,
                 data_format=data_format)  # fmt: skip


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


@lowers("UnsortedSegment")
def segments_by_masks(x: Value, ids: Value, count: Value, *, reduction: str) -> Value:
    """Each segment is made of all rows, of which those of others have the first value: for runtimes that cannot add rows at places."""
    number, shape, rank = constant_of(count), static_shape_of(x), rank_of(ids)
    if number is None or rank is None or shape is None:
        return None
    rows, rest, dtype = math.prod(shape[:rank]), shape[rank:], np.dtype(numpy_dtype(dtype_of(x)))
    sizes = np.array([int(number.flat[0]), rows, *rest], np.int64)
    own = apply("Equal", np.arange(sizes[0]).reshape(-1, 1), reshape(cast(ids, "int64"), [1, rows]))
    mask = apply("Expand", reshape(own, [int(sizes[0]), rows, *[1] * len(rest)]), sizes)
    spread = apply("Expand", reshape(x, [1, rows, *rest]), sizes)
    kinds = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}
    return reduce(kinds[reduction], where(mask, spread, first_value(reduction, dtype).astype(dtype)), [1], keepdims=False)


@lowers("SegmentSum")
def sums_of_known_segments(x: Value, ids: Value) -> Value:
    """The sums of segments in any order, where the last row's is known."""
    known = constant_of(ids)
    return None if known is None or not known.size else apply("UnsortedSegment", x, ids, known.reshape(-1)[-1:] + 1, reduction="sum")


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
    front, block = ([size for size in item[:axes] if isinstance(size, int)] for item in (shape, sizes))
    if len(front) == len(block) == axes and np.prod(block) <= LARGEST_CONSTANT:
        last = np.array(front, np.int64) - np.array(block, np.int64)
        offsets = np.moveaxis(np.indices(block), 0, -1).astype(np.int64)
        return apply("ScatterND", x, clip_indices(starts, last) + offsets, update)
    whole = apply("Shape", update)
    counts = slice_along(whole, 0, axes, 0)
    last = slice_along(apply("Shape", x), 0, axes, 0) - counts
    offsets = apply("Transpose", apply("NonZero", apply("Expand", np.ones((), bool), counts)), perm=(1, 0))
    if axes > 1:  # the places are a list, and so must be the rows
        rest = [size for size in sizes[axes:] if isinstance(size, int)]
        if 0 in rest:
            return x
        is_known = len(rest) == len(sizes) - axes
        rows = np.array([-1, *rest]) if is_known else apply("Concat", np.array([-1]), slice_along(whole, axes, None, 0), axis=0)
        update = apply("Reshape", update, rows)
    return apply("ScatterND", x, clip_indices(starts, last) + offsets, update)


@lowers("TensorScatter")
def update_one_sample(x: Value, update: Value, starts: Value = None, *, axis: int, mode: str) -> Value:
    """The update is one block where there is one sample, and nothing goes on at the start."""
    shape = shape_of(x)
    if shape is None or shape[0] != 1 or mode != "linear":
        return None
    along = np.eye(len(shape), dtype=np.int64)[axis]
    return apply("DynamicUpdateSlice", x, update, along * 0 if starts is None else cast(starts, "int64") * along)


@lowers("TensorScatter")
def update_from_write_indices(x: Value, update: Value, starts: Value = None, *, axis: int, mode: str) -> Value:
    """The rows of the update are put at their places, each named by its indices along the axes up to the one that is updated."""
    shape, sizes = shape_of(x), shape_of(update)
    if shape is None or sizes is None:
        return None
    axis %= len(shape)
    front, block = ([size for size in item[: axis + 1] if isinstance(size, int)] for item in (shape, sizes))
    if not len(front) == len(block) == axis + 1 or np.prod(block) > LARGEST_CONSTANT:
        return None
    places: Value = np.moveaxis(np.indices(block), 0, -1).astype(np.int64)
    if starts is not None:
        along = np.eye(axis + 1, dtype=np.int64)[axis]
        places = reshape(cast(starts, "int64"), [-1, *[1] * (axis + 1)]) * along + places
    if mode == "circular":
        places = apply("FloorMod", places, np.array(front, np.int64))
    return apply("ScatterND", x, places, update)


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


_COMBINED = {"add": "Add", "mul": "Mul", "min": "Min", "max": "Max", "all": "And", "any": "Or"}
#: Types in which elements are combined; others wrap around in, or are exact in, one of them.
_TYPES = ("float32", "float64", "int32", "int64", "bool")
#: Elements of a window, each of which is a Slice.
_MOST = 1024


@lowers("ReduceWindow")
def slices_of_windows(
    x: Value, first: Value, *, function: str, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Value:
    """A Slice for each place in the window, combined one after the other, as TFLite's kernel does."""
    shape, dtype = static_shape_of(x), dtype_of(x)
    if shape is None or math.prod(window) > _MOST:
        return None
    wide = dtype if dtype in _TYPES else "float32" if "float" in dtype else "int64"
    value, total = cast(x, wide), cast(first if rank_of(first) == 0 else reshape(first, []), wide)
    axes = list(zip(shape, window, strides, dilations, strict=True))
    counts = [count_windows(*axis) for axis in axes]
    for at in product(*map(range, window)):
        starts = [place * gap for place, gap in zip(at, dilations, strict=True)]
        ends = [start + (n - 1) * step + 1 if n else start for start, n, step in zip(starts, counts, strides, strict=True)]
        lists = (np.array(numbers, np.int64) for numbers in (starts, ends, range(len(axes)), strides))
        total = apply(_COMBINED[function], total, apply("Slice", value, *lists))
    return cast(total, dtype)


@lowers("StartGather")
def rows_of_windows(
    x: Value, starts: Value, *, offset_dims: Sequence[int], collapsed_dims: Sequence[int], start_index_map: Sequence[int],
    index_vector_dim: int, slice_sizes: Sequence[int],
) -> Value:  # fmt: skip
    """Every place of every window is gathered, and the windows' axes are put where they belong."""
    shape, rank = static_shape_of(x), rank_of(starts)
    if shape is None or rank is None or not start_index_map:
        return None
    kept = [axis for axis in range(len(shape)) if axis not in collapsed_dims]
    sizes = [slice_sizes[axis] for axis in kept]
    if math.prod(sizes) > LARGEST_CONSTANT:
        return None
    index = cast(starts, "int64")
    if index_vector_dim == rank:
        index, rank = apply("Unsqueeze", index, np.array([-1])), rank + 1
    else:
        index = transpose(index, [*(axis for axis in range(rank) if axis != index_vector_dim), index_vector_dim])
    last = np.array(shape) - slice_sizes
    if list(start_index_map) != list(range(len(shape))):
        columns = [apply("Gather", index, np.array([place]), axis=-1) for place in range(len(start_index_map))]
        zero = columns[0] - columns[0]
        full = [columns[list(start_index_map).index(axis)] if axis in start_index_map else zero for axis in range(len(shape))]
        index = apply("Concat", *full, axis=-1) if len(full) > 1 else full[0]
    index = clip_indices(index, last)
    offsets = np.moveaxis(np.indices([size if axis in kept else 1 for axis, size in enumerate(slice_sizes)]), 0, -1)
    offsets = offsets.reshape(*sizes, len(shape)).astype(np.int64)
    batch = rank - 1
    wide = apply("Unsqueeze", index, np.arange(batch, batch + len(kept))) if kept else index
    found = apply("GatherND", x, wide + offsets)
    order = [axis for axis in range(batch + len(kept)) if axis not in offset_dims]
    return transpose(found, [[*order, *offset_dims].index(axis) for axis in range(batch + len(kept))])


@lowers("Trilu")
def triangle(x: Value, diagonal: Value = None, *, upper: int) -> Value:
    """The data where a mask of the triangle is true, else 0; the mask is computed where a size or the diagonal is not known before."""
    if (rank_of(x) or 0) < 2:
        return None
    known = np.zeros(1, np.int64) if diagonal is None else constant_of(diagonal)
    rows, columns = _places(x, -2, -1)
    edge = reshape(rows, [-1, 1]) + (diagonal if known is None else int(known.flat[0]))
    return where(apply("GreaterOrEqual" if upper else "LessOrEqual", columns, edge), x, 0)


@lowers("MatrixDiag")
def rows_on_diagonals(x: Value) -> Value:
    """The data where a mask of the diagonal is true, else 0."""
    if not rank_of(x):
        return None
    rows, columns = _places(x, -1, -1)
    return where(apply("Equal", reshape(rows, [-1, 1]), columns), apply("Unsqueeze", x, np.array([-1])), 0)


@lowers("MatrixSetDiag")
def other_diagonals(x: Value, diagonal: Value) -> Value:
    """The diagonal, filled up to whole columns, where a mask is true, else the data."""
    shape = shape_of(x)
    if shape is None or len(shape) < 2:
        return None
    rows, columns = _places(x, -2, -1)
    if isinstance(shape[-2], int) and isinstance(shape[-1], int):
        at: Value = np.minimum(np.arange(shape[-1]), min(shape[-2], shape[-1]) - 1)
    else:
        at = minimum(columns, apply("Gather", apply("Shape", diagonal), np.array(len(shape) - 2)) - 1)
    wide = apply("Unsqueeze", apply("Gather", diagonal, at, axis=len(shape) - 2), np.array([-2]))
    return where(apply("Equal", reshape(rows, [-1, 1]), columns), wide, x)


def _places(x: Value, *axes: int) -> list[Value]:
    """The indices along axes; constants where sizes are numbers, unless the mask that is made of all would be a large one."""
    shape = shape_of(x) or ()
    sizes = [shape[axis] for axis in axes]
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) == len(sizes) and math.prod(numbers) > LARGEST_CONSTANT:
        numbers = []
    counts = [
        size if size in numbers else apply("Gather", apply("Shape", x), np.array(axis % len(shape)))
        for axis, size in zip(axes, sizes, strict=True)
    ]
    return [np.arange(count) if isinstance(count, int) else apply("Range", 0, count, 1) for count in counts]


@lowers("InteriorPad")
def pad_interior(x: Value, filler: Value, *, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Value:
    """Each axis with gaps gets an axis of size 1 after it; a Pad fills both, which become one axis, and what is too much is cut off."""
    shape = shape_of(x)
    has_gaps, free = any(interior), sum(isinstance(size, str) for size in shape or ())
    if shape is None or (free and (0 in shape or (has_gaps and free > 1))):
        return None
    axes = list(zip((-1 if isinstance(size, str) else size for size in shape), low, high, interior, strict=True))
    if 0 in shape:
        sizes = [max(size + max(size - 1, 0) * gap + first + last, 0) for size, first, last, gap in axes]
        return apply("Expand", reshape(filler, []), np.array(sizes, np.int64))
    steps = [gap + 1 for gap in interior]  # elements of a result for one of the data: as many whole ones are put on as edges need
    before = [-(-max(first, 0) // step) for first, step in zip(low, steps, strict=True)]
    after = [-(-max(last - gap, 0) // step) for last, gap, step in zip(high, interior, steps, strict=True)]
    value = reshape(x, [item for size, _, _, gap in axes for item in ([size, 1] if gap else [size])]) if has_gaps else x
    pads = [[item for number, gap in zip(edge, interior, strict=True) for item in ([number, gap * end] if gap else [number])]
            for end, edge in enumerate((before, after))]  # fmt: skip
    value = apply("Pad", value, np.array(pads[0] + pads[1]), filler)
    if has_gaps:
        ends = zip(axes, before, after, steps, strict=True)
        value = reshape(value, [size if size < 0 else (size + front + back) * step for (size, *_), front, back, step in ends])
    starts = [front * step - first for first, front, step in zip(low, before, steps, strict=True)]
    extra = [back * step + gap - last for last, gap, back, step in zip(high, interior, after, steps, strict=True)]
    cut = [axis for axis in range(len(shape)) if starts[axis] or extra[axis]]
    if not cut:
        return value
    bounds = np.array([(starts[axis], -extra[axis] or FAR, axis) for axis in cut], np.int64)
    return apply("Slice", value, *bounds.T)
