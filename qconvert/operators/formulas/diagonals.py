"""Triangles and diagonals of matrices, and gaps between elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qconvert.operators.formulas.formula import lowers
from qconvert.operators.values import FAR, LARGEST_CONSTANT, Value, apply, constant_of, minimum, rank_of, reshape, shape_of, where

__all__: list[str] = []


@lowers("Trilu")
def triangle(x: Value, diagonal: Value = None, *, upper: int) -> Value:
    """The data where a mask of the triangle is true, else 0; the mask is computed where a size or the diagonal is not known before."""
    if (rank_of(x) or 0) < 2:
        return None
    known = np.zeros(1, np.int64) if diagonal is None else constant_of(diagonal)
    rows, columns = _places(x, -2, -1)
    edge = reshape(rows, [-1, 1]) + (diagonal if known is None else int(known.reshape(-1)[0]))
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
