"""Blocks of images that move to the batch or to the channels, and back, as formulas of reshaped and transposed data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from qconvert.operators.formulas.formula import lowers
from qconvert.operators.space import block_axes
from qconvert.operators.values import FAR, Value, apply, constant_of, rank_of, reshape, shape_of, slice_along, transpose

#: A size, or what computes it as a list of one element.
_Size = int | Callable[[], Value]


@lowers("SpaceToBatch")
def space_to_batch(x: Value, blocks: Value, pads: Value, *, data_format: str) -> Value:
    """Padded with 0.0, then the places within blocks go before the batch."""
    rank, sizes = rank_of(x), constant_of(blocks)
    if rank is None or sizes is None:
        return None
    by = _blocks(sizes, data_format, rank)
    x = _pad(x, pads, list(by), rank)
    cut: list[_Size] = []
    inner, outer = [], []
    for axis in range(rank):
        outer.append(len(cut))
        cut.append(_size(x, axis, by.get(axis, 1)))
        if axis in by:
            inner.append(len(cut))
            cut.append(by[axis])
    turned = transpose(_reshape(x, cut), [*inner, *outer])
    return _reshape(turned, [_size(x, 0, 1, math.prod(by.values())), *(cut[place] for place in outer[1:])])


@lowers("BatchToSpace")
def batch_to_space(x: Value, blocks: Value, crops: Value, *, data_format: str) -> Value:
    """The places within blocks leave the batch for their axes, which are then cropped."""
    rank, sizes = rank_of(x), constant_of(blocks)
    if rank is None or sizes is None:
        return None
    by = _blocks(sizes, data_format, rank)
    along, count = list(by), len(by)
    batch = _size(x, 0, math.prod(by.values()))
    spread = _reshape(x, [*by.values(), batch, *(_size(x, axis) for axis in range(1, rank))])
    order = [place for axis in range(rank) for place in ([count + axis, along.index(axis)] if axis in by else [count + axis])]
    whole = _reshape(transpose(spread, order), [batch, *(_size(x, axis, 1, by.get(axis, 1)) for axis in range(1, rank))])
    known = constant_of(crops)
    if known is None:
        starts, lost = (slice_along(crops, first, first + count, 0) for first in (0, count))
        return apply("Slice", whole, starts, slice_along(apply("Shape", whole), along[0], along[-1] + 1, 0) - lost, np.array(along))
    starts, lost = known.reshape(2, -1)
    return apply("Slice", whole, starts, np.where(lost, -lost, FAR), np.array(along)) if known.any() else whole


@lowers("SpaceToDepth")
def space_to_depth(x: Value, *, blocksize: int, data_format: str) -> Value:
    """The places within blocks go before the channels."""
    if rank_of(x) != 4:
        return None
    by, is_last = dict.fromkeys(block_axes(data_format, 4, 2), blocksize), data_format == "channels_last"
    parts = [_size(x, axis, by.get(axis, 1)) for axis in range(4)]
    cut = [size for axis, size in enumerate(parts) for size in ([size, blocksize] if axis in by else [size])]
    parts[3 if is_last else 1] = _size(x, 3 if is_last else 1, 1, blocksize**2)
    return _reshape(transpose(_reshape(x, cut), [0, 1, 3, 2, 4, 5] if is_last else [0, 3, 5, 1, 2, 4]), parts)


@lowers("DepthToSpace")
def depth_to_space(x: Value, *, blocksize: int, mode: str, data_format: str) -> Value:
    """The channels are places within blocks, and depth: rows, columns and depth, or depth first (CRD)."""
    if rank_of(x) != 4:
        return None
    is_last, is_deep = data_format == "channels_last", mode == "CRD"
    channels = 3 if is_last else 1
    depth, whole = _size(x, channels, blocksize**2), [_size(x, axis, 1, blocksize) for axis in range(4) if axis not in (0, channels)]
    cut: list[_Size] = [_size(x, axis) for axis in range(4)]
    cut[channels : channels + 1] = [depth, blocksize, blocksize] if is_deep else [blocksize, blocksize, depth]
    row, column, deep = (channels + place for place in ((1, 2, 0) if is_deep else (0, 1, 2)))
    first = [1, row, 2, column] if is_last else [4, row, 5, column]
    turned = transpose(_reshape(x, cut), [0, *first, deep] if is_last else [0, deep, *first])
    return _reshape(turned, [cut[0], *whole, depth] if is_last else [cut[0], depth, *whole])


def _blocks(sizes: Value, data_format: str, rank: int) -> dict[int, int]:
    """Return the axes that blocks divide, with the sizes of these."""
    return dict(zip(block_axes(data_format, rank, len(sizes)), sizes.tolist(), strict=True))


def _pad(x: Value, pads: Value, along: Sequence[int], rank: int) -> Value:
    """Return data with so much before and after each of neighbouring axes."""
    known = constant_of(pads)
    if known is not None and not known.any():
        return x
    before, after = (slice_along(pads if known is None else known, first, first + len(along), 0) for first in (0, len(along)))
    front, back = (np.zeros(count, np.int64) for count in (along[0], rank - along[-1] - 1))
    return apply("Pad", x, apply("Concat", front, before, back, front, after, back, axis=0))


def _size(x: Value, axis: int, divisor: int = 1, factor: int = 1) -> _Size:
    """Return a size of data, divided and multiplied."""
    size = (shape_of(x) or ())[axis]
    if isinstance(size, int):
        return size // divisor * factor
    return lambda: slice_along(apply("Shape", x), axis, axis + 1, 0) / np.array([divisor]) * np.array([factor])


def _reshape(x: Value, sizes: Sequence[_Size]) -> Value:
    """Return data in another shape: the first size that is not known is what is left, the others are computed."""
    first = next((place for place, size in enumerate(sizes) if not isinstance(size, int)), -1)
    parts = [-1 if place == first else size if isinstance(size, int) else size() for place, size in enumerate(sizes)]
    if all(isinstance(part, int) for part in parts):
        return reshape(x, parts)
    return apply("Reshape", x, apply("Concat", *(np.array([part]) if isinstance(part, int) else part for part in parts), axis=0))
