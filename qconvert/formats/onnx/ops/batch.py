"""SpaceToBatch and BatchToSpace, which ONNX has not: Pad, Reshape, Transpose and Slice of stored values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.values import Place, Value, axes
from qconvert.graph import Op

#: Types that onnxruntime's Pad does not take (1.31).
_NO_PAD = ("int16", "uint16")


@dataclass(frozen=True, slots=True)
class _Open:
    """A size that is dynamic: that of `axis` of the data, divided and multiplied."""

    axis: int
    divisor: int = 1
    factor: int = 1


_Size = int | _Open


def _size(sizes: Sequence[int | None], axis: int, divisor: int = 1, factor: int = 1) -> _Size:
    """The size of `axis`, divided and multiplied."""
    size = sizes[axis]
    return _Open(axis, divisor, factor) if size is None else size // divisor * factor


def _shape(data: Value, sizes: Sequence[_Size]) -> Value:
    """A shape for a Reshape of `data`: the first size that is not known is what is left, the others are computed."""
    computed = [size for size in sizes if isinstance(size, _Open)][1:]
    parts = []
    for is_computed, run in groupby(sizes, lambda size: size in computed):
        if is_computed:
            parts += [_compute_size(data, size) for size in run if isinstance(size, _Open)]
        else:
            parts.append(data.at.constant(axes(*(size if isinstance(size, int) else -1 for size in run))))
    return data.at.node("Concat", *parts, axis=0) if computed else parts[0]


def _compute_size(data: Value, size: _Open) -> Value:
    """A list of one element, the size."""
    (whole,) = data.at.b.make_once("sizes", data.name, lambda: [data.then("Shape").name])
    result = _part(data.at.value(whole, "int64"), size.axis, size.axis + 1)
    result = result / axes(size.divisor) if size.divisor != 1 else result
    return result * axes(size.factor) if size.factor != 1 else result


def _part(value: Value, start: int, end: int) -> Value:
    """Elements of a list from `start` to before `end`."""
    return value.then("Slice", axes(start), axes(end))


def _blocks(op: Op, b: Builder) -> tuple[list[int | None], dict[int, int]]:
    """The sizes of the data, and the axes that blocks divide with the sizes of these."""
    shape, blocks = b.tensor(op.inputs[0]).shape, b.integers(op, 1)
    if shape is None:
        raise b.unsupported_error(op, "data of unknown rank", rule="unknown-rank")
    sizes = [size if isinstance(size, int) else None for size in shape]
    first = 1 if op["data_format"] == "channels_last" or len(sizes) != 4 else 2
    return sizes, dict(enumerate(blocks, first))


def write_space_to_batch(op: Op, b: Builder) -> None:
    """SpaceToBatch: padded with 0.0, then blocks go before the batch."""
    sizes, blocks = _blocks(op, b)
    value, padded = _pad_data(op, b, sizes, list(blocks))
    split: list[_Size] = []
    inner, outer = [], []
    for axis in range(len(sizes)):
        outer.append(len(split))
        split.append(_size(padded, axis, blocks.get(axis, 1)))
        if axis in blocks:
            inner.append(len(split))
            split.append(blocks[axis])
    joined = [_size(padded, 0, 1, math.prod(blocks.values()))]
    joined += [_size(padded, axis, blocks.get(axis, 1)) for axis in range(1, len(sizes))]
    _rearrange_axes(value, split, [*inner, *outer], joined).finish(op.outputs[0])


def _pad_data(op: Op, b: Builder, sizes: list[int | None], along: list[int]) -> tuple[Value, list[int | None]]:
    """The stored data after a Pad, if there is anything to pad, and their sizes."""
    at, amounts, count = Place(b, b, op.outputs[0]), b.graph.constant(op.inputs[2]), len(along)
    tensor, value = b.tensor(op.inputs[0]), at.stored(op.inputs[0])
    if amounts is not None:
        rows = np.zeros((2, len(sizes)), np.int64)
        rows[:, along] = amounts.reshape(2, -1)
        if not rows.any():
            return value, sizes
        pads = at.constant(rows.reshape(-1))
        padded = [None if size is None else size + int(rows[:, axis].sum()) for axis, size in enumerate(sizes)]
    else:
        given = at.stored(op.inputs[2], "int64")
        front, back = (at.constant(np.zeros(n, np.int64)) for n in (along[0], len(sizes) - along[-1] - 1))
        starts, ends = (_part(given, start, start + count) for start in (0, count))
        pads = at.node("Concat", front, starts, back, front, ends, back, axis=0)
        padded = [None if axis in along else size for axis, size in enumerate(sizes)]
    wide = value.cast("int32" if tensor.dtype in _NO_PAD else tensor.dtype)
    zero = 0 if tensor.quantization is None else tensor.quantization.point
    return wide.then("Pad", pads, zero).cast(tensor.dtype), padded


def _rearrange_axes(value: Value, split: Sequence[_Size], perm: Sequence[int], joined: Sequence[_Size]) -> Value:
    """Reshape, Transpose, Reshape."""
    first, second = _shape(value, split), _shape(value, joined)
    return value.then("Reshape", first).transpose(*perm).then("Reshape", second)


def write_batch_to_space(op: Op, b: Builder) -> None:
    """BatchToSpace: blocks leave the batch for their axes, which are then cropped."""
    sizes, blocks = _blocks(op, b)
    at, along, count = Place(b, b, op.outputs[0]), list(blocks), len(blocks)
    split = [*blocks.values(), _size(sizes, 0, math.prod(blocks.values())), *(_size(sizes, axis) for axis in range(1, len(sizes)))]
    joined = [_size(sizes, 0, math.prod(blocks.values()))]
    perm = [count]
    for axis in range(1, len(sizes)):
        perm += [count + axis, along.index(axis)] if axis in blocks else [count + axis]
        joined.append(_size(sizes, axis, 1, blocks.get(axis, 1)))
    result, crops = _rearrange_axes(at.stored(op.inputs[0]), split, perm, joined), b.graph.constant(op.inputs[2])
    if crops is None or crops.any():
        whole = [size for size in (joined[axis] for axis in along) if isinstance(size, int)]
        if crops is not None and len(whole) == count:
            starts, lost = crops.reshape(2, -1)
            result = result.then("Slice", axes(*starts), axes(*(np.array(whole) - lost)), axes(*along))
        else:
            before, after = (_part(at.stored(op.inputs[2], "int64"), start, start + count) for start in (0, count))
            ends = _part(result.then("Shape", dtype="int64"), along[0], along[-1] + 1) - after
            result = result.then("Slice", before, ends, axes(*along))
    result.finish(op.outputs[0])


WRITERS: dict[str, WriteFunction] = {"SpaceToBatch": write_space_to_batch, "BatchToSpace": write_batch_to_space}
