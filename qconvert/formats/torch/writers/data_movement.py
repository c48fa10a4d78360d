"""Moves of elements, on the integers as they are stored; blocks of positions become channels or batches, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.formats.torch.writers.indexing import gather_in_batches, indices
from qconvert.formats.torch.writers.layer_parts import torch_pads
from qconvert.formats.torch.writers.numbers import sizes_of
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Op
from qconvert.rewriting.lowering import conditions


@conditions(lambda op, scope: "" if op["mode"] == "CRD" else "pixel_shuffle has the channels before the positions in a block")
def write_depth_to_space(op: Op, b: Builder) -> None:
    """DepthToSpace of mode CRD."""
    b.channels_first(op)
    b.store(op, b.aten("pixel_shuffle", b.stored_input(op), op["blocksize"]))


def write_reshape(op: Op, b: Builder) -> None:
    """Reshape; a size of 0 is the data's, unless allowzero."""
    wanted: list[Any] = sizes_of(b, op.inputs[1])
    if not op["allowzero"] and 0 in wanted:
        b.note_operator()
        wanted = [b.size_at(op, index) if isinstance(size, int) and size == 0 else size for index, size in enumerate(wanted)]
    b.store(op, b.aten("reshape", b.stored_input(op), wanted))


def write_transpose(op: Op, b: Builder) -> None:
    """Transpose."""
    b.store(op, b.aten("permute", b.stored_input(op), op["perm"]))


def write_squeeze(op: Op, b: Builder) -> None:
    """Squeeze: one axis after the other, the last first."""
    node, rank = b.stored_input(op), b.rank(op)
    stated = b.integers(op, 1) if op.has(1) else None
    if stated is None:
        stated = [axis for axis, size in enumerate(b.shape(op)) if size == 1]
    b.store(op, b.aten("squeeze.dims", node, sorted(axis % rank for axis in stated)))


def write_unsqueeze(op: Op, b: Builder) -> None:
    """Unsqueeze: the axes of the result, the first first."""
    node, axes = b.stored_input(op), b.integers(op, 1)
    rank = b.rank(op) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        node = b.aten("unsqueeze", node, axis)
    b.store(op, node)


def write_expand(op: Op, b: Builder) -> None:
    """Expand: sizes of 1 keep those of the data."""
    shape, wanted = b.shape(op), sizes_of(b, op.inputs[1])
    before = len(wanted) - len(shape)
    sizes = [-1 if size == 1 and place >= before else size for place, size in enumerate(wanted)]
    b.store(op, b.aten("expand", b.stored_input(op), sizes))


def write_tile(op: Op, b: Builder) -> None:
    """Tile."""
    b.store(op, b.aten("repeat", b.stored_input(op), sizes_of(b, op.inputs[1])))


def write_concat(op: Op, b: Builder) -> None:
    """Concat: of integers if all sides have one quantization, else of float values."""
    sides = [b.tensor(name) for name in op.names]
    axis = op["axis"]
    if all(side.shares_quantization(sides[-1]) for side in sides) and not op["activation"]:
        b.store(op, b.aten("cat", b.stored_values(op), axis))
    else:
        b.finish(op, b.aten("cat", b.float_values(op), axis))


def write_pack(op: Op, b: Builder) -> None:
    """Pack: a new axis."""
    b.store(op, b.aten("stack", b.stored_values(op), op["axis"]))


def write_unpack(op: Op, b: Builder) -> None:
    """Unpack: an axis taken apart."""
    node = b.stored_input(op)
    for index, name in enumerate(op.outputs):
        if name:
            b.set_node(name, b.aten("select.int", node, op["axis"], index))


def write_split(op: Op, b: Builder) -> None:
    """Split: a slice for each part."""
    node, start = b.stored_input(op), 0
    b.note_operator()
    for name, size in zip(op.outputs, b.integers(op, 1), strict=True):
        if name:
            b.set_node(name, b.aten("slice.Tensor", node, op["axis"], start, start + size))
        start += size


def write_slice(op: Op, b: Builder) -> None:
    """Slice, one axis after the other; a negative step turns the axis first."""
    node = b.stored_input(op)
    starts, ends = sizes_of(b, op.inputs[1]), sizes_of(b, op.inputs[2])
    rank, shape = b.rank(op), b.shape(op)
    axes = b.integers(op, 3) if op.has(3) else list(range(len(starts)))
    steps = b.integers(op, 4) if op.has(4) else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= rank
        if step < 0:
            size = shape[axis]
            if not isinstance(size, int) or not isinstance(start, int) or not isinstance(end, int):
                raise b.unsupported_error(op, "a negative step along an axis of unknown size", rule="unknown-size")
            places = list(range(size))[start:end:step]
            if not places:
                raise b.unsupported_error(op, "an empty result")
            node = b.aten("flip", node, [axis])
            start, end, step = size - 1 - places[0], size - places[-1], -step
        node = b.aten("slice.Tensor", node, axis, start, end, step)
    b.store(op, node)


def write_pad(op: Op, b: Builder) -> None:
    """Pad with a constant, or by reflecting or repeating what is there."""
    pads, rank = b.integers(op, 1), b.rank(op)
    begins, ends = pads[:rank], pads[rank:]
    data = b.operand(op)
    if op["mode"] == "constant":
        value: Any = 0 if data.quantization is None else data.quantization.point
        if op.has(2):
            filler = b.graph.constant(op.inputs[2])
            if filler is None:
                raise b.unsupported_error(op, "a filler that is computed at run time", rule="not-constant")
            value = filler.reshape(-1)[0].item()
        b.store(op, b.pad(data, b.stored_value(data.name), torch_pads(begins, ends), value))
        return
    mode = {"reflect": "reflect", "edge": "replicate"}.get(op["mode"])
    moved = [axis for axis in range(rank) if begins[axis] or ends[axis]]
    first = min(moved, default=rank)
    if mode is None or rank - first > 3 or first < 1 or min(pads) < 0:
        _write_repeated(op, b, pads)
        return
    count = max(rank - max(first, 1), 1) if rank > 1 else 1
    b.finish(op, b.aten("pad", b.float_value(data.name), torch_pads(begins[-count:], ends[-count:]), mode))


def _write_repeated(op: Op, b: Builder, pads: list[int]) -> None:
    """A Pad that repeats what is there, by the indices of it along each axis."""
    shape, node = b.static_shape(op), b.stored_input(op)
    b.note_operator()
    for axis, size in enumerate(shape):
        begin, end = pads[axis], pads[len(shape) + axis]
        if begin or end:
            kept = np.arange(max(-begin, 0), size - max(-end, 0))
            places = np.pad(kept, (max(begin, 0), max(end, 0)), mode=op["mode"])
            node = b.aten("index_select", node, axis, b.buffer(places, f"{op.outputs[0]}/places"))
    b.store(op, node)


def write_gather(op: Op, b: Builder) -> None:
    """Gather along an axis by one index, a list, or indices of any shape; negative ones count from the end."""
    if op["batch_dims"]:
        gather_in_batches(op, b)
        return
    node, axis, data = b.stored_input(op), op["axis"] % b.rank(op), b.graph.constant(op.inputs[1])
    if data is not None and data.ndim == 0:
        b.store(op, b.aten("select.int", node, axis, int(data)))
        return
    b.store(op, b.aten("index.Tensor", node, [*[None] * axis, indices(b, op.inputs[1])]))


WRITERS: Mapping[str, WriteFunction] = {
    "DepthToSpace": write_depth_to_space,
    "Reshape": write_reshape,
    "Transpose": write_transpose,
    "Squeeze": write_squeeze,
    "Unsqueeze": write_unsqueeze,
    "Expand": write_expand,
    "Tile": write_tile,
    "Concat": write_concat,
    "Pack": write_pack,
    "Unpack": write_unpack,
    "Split": write_split,
    "Slice": write_slice,
    "Pad": write_pad,
    "Gather": write_gather,
}
