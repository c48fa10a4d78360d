"""SpaceToBatch and BatchToSpace, which ONNX has not: Pad, Reshape, Transpose and Slice of stored values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.graph import Op

__all__ = ["WRITERS"]

#: Types that onnxruntime's Pad does not take (1.31).
_NO_PAD = ("int16", "uint16")


@dataclass(frozen=True, slots=True)
class _Open:
    """A size that is dynamic: that of `axis` of the data, divided and multiplied."""

    axis: int
    divisor: int = 1
    factor: int = 1


_Size = int | _Open


class _Sizes:
    """The sizes of an ONNX value, and shapes that are made of them."""

    def __init__(self, op: Op, b: Builder, value: str, sizes: Sequence[int | None]) -> None:
        self._op, self._b, self._value = op, b, value
        self._sizes = sizes
        self._whole = ""

    def of(self, axis: int, divisor: int = 1, factor: int = 1) -> _Size:
        """The size of `axis`, divided and multiplied."""
        size = self._sizes[axis]
        return _Open(axis, divisor, factor) if size is None else size // divisor * factor

    def shape(self, sizes: Sequence[_Size], word: str) -> str:
        """A shape for a Reshape: the first size that is not known is what is left, the others are computed."""
        b, hint = self._b, f"{self._op.outputs[0]}/{word}"
        opened = [place for place, size in enumerate(sizes) if isinstance(size, _Open)]
        numbers = [size if isinstance(size, int) else -1 for size in sizes]
        if len(opened) < 2:
            return b.const(np.array(numbers, np.int64), hint)
        places = set(opened[1:])
        parts, run = [], []
        for place, size in enumerate(sizes):
            if place not in places:
                run.append(numbers[place])
                continue
            if run:
                parts.append(b.const(np.array(run, np.int64), f"{hint}_known"))
            run = []
            assert isinstance(size, _Open)
            parts.append(self.value(size))
        if run:
            parts.append(b.const(np.array(run, np.int64), f"{hint}_known"))
        return b.node("Concat", parts, hint=hint, axis=0)[0]

    def value(self, size: _Open) -> str:
        """A list of one element, the size."""
        b, hint = self._b, f"{self._op.outputs[0]}/size"
        self._whole = self._whole or b.node("Shape", [self._value], hint=f"{hint}s")[0]
        result = _part(b, self._whole, size.axis, size.axis + 1, hint)
        for kind, number in (("Div", size.divisor), ("Mul", size.factor)):
            if number != 1:
                result = b.node(kind, [result, b.const(np.array([number], np.int64), f"{hint}_by")], hint=hint)[0]
        return result


def _part(b: Builder, value: str, start: int, end: int, hint: str) -> str:
    """Elements of a list from `start` to before `end`."""
    bounds = [b.const(np.array([v], np.int64), f"{hint}_bound") for v in (start, end)]
    return b.node("Slice", [value, *bounds], hint=hint)[0]


def _blocks(op: Op, b: Builder) -> tuple[list[int | None], list[int], list[int]]:
    """The sizes of the data, the blocks, and the axes that they divide."""
    shape, blocks = b.tensor(op.inputs[0]).shape, b.integers(op, 1)
    if shape is None:
        raise b.unsupported_error(op, "data of unknown rank", rule="unknown-rank")
    sizes = [size if isinstance(size, int) else None for size in shape]
    first = 1 if op["data_format"] == "channels_last" or len(sizes) != 4 else 2
    return sizes, blocks, list(range(first, first + len(blocks)))


def write_space_to_batch(op: Op, b: Builder) -> None:
    """SpaceToBatch: padded with 0.0, then blocks go before the batch."""
    sizes, blocks, axes = _blocks(op, b)
    value, padded = _pad_data(op, b, sizes, axes)
    known = _Sizes(op, b, value, padded)
    split: list[_Size] = []
    inner, outer = [], []
    for axis in range(len(sizes)):
        block = blocks[axes.index(axis)] if axis in axes else 1
        split.append(known.of(axis, block))
        outer.append(len(split) - 1)
        if axis in axes:
            split.append(block)
            inner.append(len(split) - 1)
    joined = [known.of(0, 1, math.prod(blocks))]
    joined += [known.of(axis, blocks[axes.index(axis)] if axis in axes else 1) for axis in range(1, len(sizes))]
    _rearrange_axes(op, b, value, known.shape(split, "split"), [*inner, *outer], known.shape(joined, "joined"), op.outputs[0])


def _pad_data(op: Op, b: Builder, sizes: list[int | None], axes: list[int]) -> tuple[str, list[int | None]]:
    """The stored data after a Pad, if there is anything to pad, and their sizes."""
    tensor, hint = b.tensor(op.inputs[0]), f"{op.outputs[0]}/padded"
    value, amounts, count = b.stored_value(tensor.name), b.graph.constant(op.inputs[2]), len(axes)
    padded = list(sizes)
    if amounts is not None:
        rows = np.zeros((2, len(sizes)), np.int64)
        rows[:, axes] = amounts.reshape(2, -1)
        if not rows.any():
            return value, padded
        pads = b.const(rows.reshape(-1), f"{op.outputs[0]}/pads")
        padded = [None if size is None else size + int(rows[:, axis].sum()) for axis, size in enumerate(sizes)]
    else:
        given = b.int64(op.inputs[2])
        front, back = (b.const(np.zeros(n, np.int64), f"{hint}_none") for n in (axes[0], len(sizes) - axes[-1] - 1))
        sides = [_part(b, given, start, start + count, f"{hint}_by") for start in (0, count)]
        pads = b.node("Concat", [front, sides[0], back, front, sides[1], back], hint=f"{op.outputs[0]}/pads", axis=0)[0]
        padded = [None if axis in axes else size for axis, size in enumerate(sizes)]
    wide = "int32" if tensor.dtype in _NO_PAD else tensor.dtype
    zero = 0 if tensor.quantization is None else int(tensor.quantization.zero_point[0])
    filler = b.const(np.array(zero, wide), f"{op.outputs[0]}/padding")
    if wide != tensor.dtype:
        value = b.cast(value, wide, hint=f"{tensor.name}/{wide}")
    value = b.node("Pad", [value, pads, filler], hint=hint)[0]
    if wide != tensor.dtype:
        value = b.cast(value, tensor.dtype, hint=hint)
    return value, padded


def _rearrange_axes(op: Op, b: Builder, value: str, split: str, perm: list[int], joined: str, result: str) -> None:
    """Reshape, Transpose, Reshape."""
    parts = b.node("Reshape", [value, split], hint=f"{op.outputs[0]}/parts")
    turned = b.node("Transpose", parts, hint=f"{op.outputs[0]}/turned", perm=perm)
    b.node("Reshape", [turned[0], joined], [result])


def write_batch_to_space(op: Op, b: Builder) -> None:
    """BatchToSpace: blocks leave the batch for their axes, which are then cropped."""
    sizes, blocks, axes = _blocks(op, b)
    count, value, result = len(blocks), b.stored_value(op.inputs[0]), op.outputs[0]
    known = _Sizes(op, b, value, sizes)
    split: list[_Size] = [*blocks, known.of(0, math.prod(blocks)), *(known.of(axis) for axis in range(1, len(sizes)))]
    joined = [known.of(0, math.prod(blocks))]
    perm = [count]
    for axis in range(1, len(sizes)):
        perm += [count + axis, axes.index(axis)] if axis in axes else [count + axis]
        joined.append(known.of(axis, 1, blocks[axes.index(axis)] if axis in axes else 1))
    crops = b.graph.constant(op.inputs[2])
    target = result if crops is not None and not crops.any() else b.name(f"{result}/uncropped")
    _rearrange_axes(op, b, value, known.shape(split, "split"), perm, known.shape(joined, "joined"), target)
    if target == result:
        return
    places = b.const(np.array(axes, np.int64), f"{result}/cropped_axes")
    whole = [joined[axis] for axis in axes]
    if crops is not None and all(isinstance(size, int) for size in whole):
        ends = [int(size) - int(crop) for size, crop in zip(whole, crops.reshape(-1)[count:], strict=True) if isinstance(size, int)]
        bounds = [b.const(np.asarray(v, np.int64), f"{result}/crop") for v in (crops.reshape(-1)[:count], ends)]
    else:
        given = b.int64(op.inputs[2])
        sides = [_part(b, given, start, start + count, f"{result}/crop") for start in (0, count)]
        found = b.node("Shape", [target], hint=f"{result}/whole_sizes")[0]
        bounds = [sides[0], b.node("Sub", [_part(b, found, axes[0], axes[-1] + 1, f"{result}/whole"), sides[1]], hint=f"{result}/ends")[0]]
    b.node("Slice", [target, *bounds, places], [result])


WRITERS: dict[str, WriteFunction] = {"SpaceToBatch": write_space_to_batch, "BatchToSpace": write_batch_to_space}
