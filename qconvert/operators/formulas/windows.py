"""Windows of any number of axes: reductions over their elements, and windows cut out at given places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from qconvert.operators.formulas.formula import lowers
from qconvert.operators.values import LARGEST_CONSTANT, Value, apply, cast, clip_indices, dtype_of, rank_of, reshape, shape_of, transpose

__all__: list[str] = []

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
    shape, dtype = shape_of(x), dtype_of(x)
    if shape is None or any(isinstance(size, str) for size in shape) or math.prod(window) > _MOST:
        return None
    wide = dtype if dtype in _TYPES else "float32" if "float" in dtype else "int64"
    value, total = cast(x, wide), cast(first if rank_of(first) == 0 else reshape(first, []), wide)
    axes = list(zip([int(size) for size in shape], window, strides, dilations, strict=True))
    counts = [max((size - (taps - 1) * gap - 1) // step + 1, 0) for size, taps, step, gap in axes]
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
    shape, rank = shape_of(x), rank_of(starts)
    if shape is None or rank is None or any(isinstance(size, str) for size in shape) or not start_index_map:
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
    last = np.array([int(size) - n for size, n in zip(shape, slice_sizes, strict=True)], np.int64)
    if list(start_index_map) != list(range(len(shape))):
        columns = [apply("Gather", index, np.array([place]), axis=-1) for place in range(len(start_index_map))]
        zero = columns[0] - columns[0]
        full = [columns[list(start_index_map).index(axis)] if axis in start_index_map else zero for axis in range(len(shape))]
        index = apply("Concat", *full, axis=-1) if len(full) > 1 else full[0]
    index = clip_indices(index, last)
    quantization = np.moveaxis(np.indices([size if axis in kept else 1 for axis, size in enumerate(slice_sizes)]), 0, -1)
    quantization = quantization.reshape(*sizes, len(shape)).astype(np.int64)
    batch = rank - 1
    wide = apply("Unsqueeze", index, np.arange(batch, batch + len(kept))) if kept else index
    found = apply("GatherND", x, wide + quantization)
    order = [axis for axis in range(batch + len(kept)) if axis not in offset_dims]
    return transpose(found, [[*order, *offset_dims].index(axis) for axis in range(batch + len(kept))])
