"""Blocks of positions that become channels or batches, and back: reshapes and permutations of stored integers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from qconvert.formats.torch.writers.windows import torch_pads
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Op

__all__ = ["WRITERS"]


def write_depth_to_space(op: Op, b: Builder) -> None:
    """DepthToSpace: pixel_shuffle has the channels before the positions in a block (CRD); the other order is decomposed."""
    b.channels_first(op)
    block, node = int(op["blocksize"]), b.stored_value(op.inputs[0])
    if op["mode"] == "CRD":
        b.set_node(op.outputs[0], b.aten("pixel_shuffle", node, block))
        return
    channels, height, width = _sizes(op, b)
    node = b.aten("reshape", node, [-1, block, block, channels // block**2, height, width])
    node = b.aten("permute", node, [0, 3, 4, 1, 5, 2])
    b.set_node(op.outputs[0], b.aten("reshape", node, [-1, channels // block**2, height * block, width * block]))


def write_space_to_depth(op: Op, b: Builder) -> None:
    """SpaceToDepth: the positions in a block come before the channels."""
    b.channels_first(op)
    block, (channels, height, width) = int(op["blocksize"]), _sizes(op, b)
    node = b.aten("reshape", b.stored_value(op.inputs[0]), [-1, channels, height // block, block, width // block, block])
    node = b.aten("permute", node, [0, 3, 5, 1, 2, 4])
    b.set_node(op.outputs[0], b.aten("reshape", node, [-1, channels * block**2, height // block, width // block]))


def _sizes(op: Op, b: Builder) -> list[int]:
    """The sizes after the batch, which must be known."""
    sizes = b.shape(op, op.inputs[0])[1:]
    if any(isinstance(size, str) for size in sizes):
        raise b.unsupported_error(op, f"data of shape {sizes}")
    return [int(size) for size in sizes]


def _block_axes(op: Op, rank: int, count: int) -> list[int]:
    first = 2 if op["data_format"] == "channels_first" and rank == 4 else 1
    return [first + index for index in range(count)]


def write_space_to_batch(op: Op, b: Builder) -> None:
    """SpaceToBatch: padded, cut into blocks, whose positions come before the batch."""
    blocks, pads, rank = b.integers(op, 1), b.integers(op, 2), b.rank(op)
    axes, sizes, quantization = _block_axes(op, rank, len(blocks)), _sizes(op, b), b.tensor(op.inputs[0]).quantization
    begins, ends = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        begins[axis], ends[axis] = pads[index], pads[len(blocks) + index]
    zero = 0 if quantization is None else int(quantization.zero_point[0])
    node = b.pad(b.tensor(op.inputs[0]), b.stored_value(op.inputs[0]), torch_pads(begins, ends), zero)
    cut, inner, outer = [-1], [], [0]
    for axis in range(1, rank):
        size = sizes[axis - 1] + begins[axis] + ends[axis]
        outer.append(len(cut))
        cut.append(size // blocks[axes.index(axis)] if axis in axes else size)
        if axis in axes:
            inner.append(len(cut))
            cut.append(blocks[axes.index(axis)])
    node = b.aten("permute", b.aten("reshape", node, cut), [*inner, *outer])
    b.set_node(op.outputs[0], b.aten("reshape", node, [-1, *(cut[place] for place in outer[1:])]))


def write_batch_to_space(op: Op, b: Builder) -> None:
    """BatchToSpace: the mirror, with crops at the end."""
    blocks, crops, rank = b.integers(op, 1), b.integers(op, 2), b.rank(op)
    count, sizes = len(blocks), _sizes(op, b)
    axes, batch = _block_axes(op, rank, count), b.shape(op, op.inputs[0])[0]
    rows = batch // math.prod(blocks) if isinstance(batch, int) else -1
    node = b.aten("reshape", b.stored_value(op.inputs[0]), [*blocks, rows, *sizes])
    order: list[int] = []
    for axis in range(rank):
        order += [count + axis, axes.index(axis)] if axis in axes else [count + axis]
    whole = [size * (blocks[axes.index(axis)] if axis in axes else 1) for axis, size in enumerate(sizes, 1)]
    node = b.aten("reshape", b.aten("permute", node, order), [rows, *whole])
    for index, axis in enumerate(axes):
        if crops[index] or crops[count + index]:
            node = b.aten("slice.Tensor", node, axis, crops[index], whole[axis - 1] - crops[count + index])
    b.set_node(op.outputs[0], node)


WRITERS: Mapping[str, WriteFunction] = {
    "DepthToSpace": write_depth_to_space,
    "SpaceToDepth": write_space_to_depth,
    "SpaceToBatch": write_space_to_batch,
    "BatchToSpace": write_batch_to_space,
}
