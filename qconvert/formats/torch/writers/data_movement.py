"""Moves of elements, and elements that are taken, put or ordered at indices, on the integers as they are stored; blocks of positions become
channels or batches, and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.program import Node
from qconvert.formats.torch.writers.layer_parts import torch_pads
from qconvert.formats.torch.writers.numbers import sizes_of
from qconvert.formats.torch.writing import Builder, WriteFunction, along_axis, with_note
from qconvert.graph import Op, numpy_dtype
from qconvert.operators.segments import first_value
from qconvert.rewriting.lowering import conditions

_REDUCE = {"mul": "prod", "max": "amax", "min": "amin", "prod": "prod"}


def indices(b: Builder, name: str) -> Node:
    """Indices as int64."""
    node: Node = b.stored_value(name)
    return node if b.tensor(name).dtype == "int64" else b.cast(node, "int64")


def _columns(b: Builder, index: Node, count: int) -> list[Node]:
    """Rows of indices, as an index for each axis."""
    return [b.aten("select.int", index, -1, place) for place in range(count)]


def _wrap_negative(op: Op, b: Builder, node: Node, size: int | str) -> Node:
    """Indices of which negative ones count from the end."""
    return b.aten("remainder.Scalar", node, *b.known_sizes(op, [size], "indices along an axis of unknown size"))


def _count_along(b: Builder, shape: Sequence[int], axis: int, rank: int, hint: str) -> Node:
    """0, 1, 2 … along one axis of several."""
    values = along_axis(np.arange(shape[axis], dtype=np.int64), axis, rank)
    return b.buffer(values, f"{hint}/places")


def write_gather_nd(op: Op, b: Builder) -> None:
    """GatherND: an index for each of the first axes; the first `batch_dims` go together."""
    batch, count = op["batch_dims"], b.shape(op, 1)[-1]
    rows = b.static_shape(op, 1) if batch or isinstance(count, str) else (count,)
    index = indices(b, op.inputs[1])
    own = [_count_along(b, rows, axis, len(rows) - 1, op.outputs[0]) for axis in range(batch)]
    chosen = _columns(b, index, rows[-1])
    b.store(op, b.aten("index.Tensor", b.stored_input(op), [*own, *chosen]))


def write_gather_elements(op: Op, b: Builder) -> None:
    """GatherElements."""
    axis = op["axis"] % b.rank(op)
    index = _wrap_negative(op, b, indices(b, op.inputs[1]), b.shape(op)[axis])
    b.store(op, b.aten("gather", b.stored_input(op), axis, index))


def _data_and_updates(op: Op, b: Builder) -> tuple[Node, Node, bool]:
    """Data and updates as they are written: sums of quantized values in int64, without their zero point in the updates."""
    data, updates = b.stored_input(op), b.stored_input(op, 2)
    quantization = b.operand(op).quantization
    if quantization is None or op["reduction"] not in ("add", "mul"):
        return data, updates, False
    if op["reduction"] == "mul":
        raise b.unsupported_error(op, "products of quantized values", rule="quantized-data")
    wide = [b.cast(node, "int64") for node in (data, updates)]
    return wide[0], wide[1] - quantization.point, True


def _end_scatter(op: Op, b: Builder, node: Node, summed: bool) -> None:
    tensor = b.result(op)
    if summed and tensor.quantization is not None:
        node = b.cast(b.aten("clamp", node, *b.limits(tensor)), tensor.dtype)
    b.set_node(tensor.name, node)


def write_scatter_nd(op: Op, b: Builder) -> None:
    """ScatterND: rows that are put, or joined with what is there."""
    rows, reduction = b.static_shape(op, 1), op["reduction"]
    data, updates, summed = _data_and_updates(op, b)
    index = indices(b, op.inputs[1])
    if reduction in ("none", "add"):
        chosen = _columns(b, index, int(rows[-1]))
        _end_scatter(op, b, b.aten("index_put", data, chosen, updates, *([True] if reduction == "add" else [])), summed)
        return
    shape = b.static_shape(op)
    depth, flat = rows[-1], b.buffer(np.zeros((), np.int64), f"{op.outputs[0]}/first")
    for place in range(depth):
        at = _wrap_negative(op, b, b.aten("select.int", index, -1, place), shape[place])
        flat = flat * shape[place] + at
    whole = b.aten("reshape", data, [int(np.prod(shape[:depth], dtype=int)), -1])
    parts = b.aten("reshape", updates, [int(np.prod(rows[:-1], dtype=int)), -1])
    joined = b.aten("index_reduce", whole, 0, b.aten("reshape", flat, [-1]), parts, _REDUCE[reduction])
    _end_scatter(op, b, b.aten("reshape", joined, list(shape)), summed)


def write_scatter_elements(op: Op, b: Builder) -> None:
    """ScatterElements."""
    axis, reduction = op["axis"] % b.rank(op), op["reduction"]
    index = _wrap_negative(op, b, indices(b, op.inputs[1]), b.shape(op)[axis])
    data, updates, summed = _data_and_updates(op, b)
    if reduction == "none":
        node = b.aten("scatter.src", data, axis, index, updates)
    elif reduction == "add":
        node = b.aten("scatter_add", data, axis, index, updates)
    else:
        node = b.aten("scatter_reduce.two", data, axis, index, updates, _REDUCE[reduction])
    _end_scatter(op, b, node, summed)


def write_reverse_sequence(op: Op, b: Builder) -> None:
    """ReverseSequence: a gather along the time, whose indices fall up to a sequence's length."""
    shape = b.static_shape(op)
    time, batch, rank = op["time_axis"] % len(shape), op["batch_axis"] % len(shape), len(shape)
    places = _count_along(b, shape, time, rank, op.outputs[0])
    lengths = b.aten("reshape", indices(b, op.inputs[1]), [-1 if axis == batch else 1 for axis in range(rank)])
    turned = lengths - 1 - places
    index = b.aten("where.self", b.aten("lt.Tensor", places, lengths), turned, places)
    b.store(op, b.aten("gather", b.stored_input(op), time, b.aten("expand", index, list(shape))))


def write_unsorted_segment(op: Op, b: Builder) -> None:
    """UnsortedSegment: rows joined by their ids, of which negative ones count for nothing."""
    data, reduction, (count,) = b.operand(op), op["reduction"], b.integers(op, 2)
    rest = list(b.static_shape(op)[len(b.static_shape(op, 1)) :])
    index = b.aten("reshape", indices(b, op.inputs[1]), [-1])
    last = b.buffer(np.array(count, np.int64), f"{op.outputs[0]}/last")
    index = b.aten("where.self", b.aten("lt.Scalar", index, 0), last, index)
    start = np.full((count + 1, *rest), first_value(reduction, numpy_dtype(data.dtype)))
    rows = b.aten("reshape", b.stored_value(data.name), [-1, *rest])
    empty = b.buffer(start.astype(numpy_dtype(data.dtype)), f"{op.outputs[0]}/empty")
    operator, more = ("index_add", ()) if reduction == "sum" else ("index_reduce", (_REDUCE[reduction],))
    b.store(op, b.aten("slice.Tensor", b.aten(operator, empty, 0, index, rows, *more), 0, 0, count))


def write_top_k(op: Op, b: Builder) -> None:
    """TopK: a sort that keeps the order of equal values, cut off."""
    (count,) = b.integers(op, 1)
    axis = op["axis"] % b.rank(op)
    found = b.aten("sort.stable", b.stored_input(op), stable=True, dim=axis, descending=bool(op["largest"]))
    for place, name in enumerate(op.outputs):
        if name:
            node = b.aten("slice.Tensor", b.call("operator.getitem", found, place), axis, 0, count)
            (b.store_indices if place else b.set_node)(name, node)


def write_non_zero(op: Op, b: Builder) -> None:
    """NonZero: as many columns as there are."""
    quantized = b.operand(op).is_quantized
    found = b.aten("permute", b.aten("nonzero", (b.float_value if quantized else b.stored_value)(op.inputs[0])), [1, 0])
    b.store_indices(op.outputs[0], found)


def write_one_hot(op: Op, b: Builder) -> None:
    """OneHot: where an index is the place along a new axis."""
    (depth,), rank = b.integers(op, 1), b.rank(op)
    axis = op["axis"] % (rank + 1)
    index = indices(b, op.inputs[0])
    if op["wraps"]:
        index = b.aten("where.self", b.aten("lt.Scalar", index, 0), index + depth, index)
    places = along_axis(np.arange(depth, dtype=np.int64), axis, rank + 1)
    chosen = b.aten("eq.Tensor", b.aten("unsqueeze", index, axis), b.buffer(places, f"{op.outputs[0]}/places"))
    off, on = (b.aten("select.int", b.stored_input(op, 2), 0, place) for place in (0, 1))
    b.store(op, b.aten("where.self", chosen, on, off))


def gather_in_batches(op: Op, b: Builder) -> None:
    """Gather whose first axes of data and indices go together: the axis is moved after them, and the others back."""
    batch, rank, count = op["batch_dims"], b.rank(op), b.operand(op, 1).rank or 0
    axis, rows = op["axis"] % rank, b.static_shape(op, 1)
    data = b.stored_input(op)
    moved = [*range(batch), axis, *(place for place in range(batch, rank) if place != axis)]
    own = [_count_along(b, rows, place, count, op.outputs[0]) for place in range(batch)]
    found = b.aten("index.Tensor", b.aten("permute", data, moved), [*own, indices(b, op.inputs[1])])
    between = axis - batch
    order: list[Any] = [
        *range(batch),
        *range(count, count + between),
        *range(batch, count),
        *range(count + between, count + rank - batch - 1),
    ]
    b.note_operator()
    b.store(op, b.aten("permute", found, order))


@conditions(lambda op, scope: "" if op["mode"] == "CRD" else "pixel_shuffle has the channels before the positions in a block")
def write_depth_to_space(op: Op, b: Builder) -> None:
    """DepthToSpace of mode CRD."""
    b.store(op, b.aten("pixel_shuffle", b.stored_input(op), op["blocksize"]))


def write_reshape(op: Op, b: Builder) -> None:
    """Reshape; a size of 0 is the data's, unless allowzero."""
    wanted: list[Any] = sizes_of(b, op.inputs[1])
    if not op["allowzero"] and 0 in wanted:
        b.note_operator()
        wanted = [b.size_at(op, index) if isinstance(size, int) and size == 0 else size for index, size in enumerate(wanted)]
    b.store(op, b.aten("reshape", b.stored_input(op), wanted))


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


def write_concat(op: Op, b: Builder) -> None:
    """Concat: of integers if all sides have one quantization, else of float values."""
    sides = [b.tensor(name) for name in op.names]
    axis = op["axis"]
    if all(side.shares_quantization(sides[-1]) for side in sides) and not op["activation"]:
        b.store(op, b.aten("cat", b.stored_values(op), axis))
    else:
        b.finish(op, b.aten("cat", b.float_values(op), axis))


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
    "Transpose": lambda op, b: b.store(op, b.aten("permute", b.stored_input(op), op["perm"])),
    "Squeeze": write_squeeze,
    "Unsqueeze": write_unsqueeze,
    "Expand": write_expand,
    "Tile": lambda op, b: b.store(op, b.aten("repeat", b.stored_input(op), sizes_of(b, op.inputs[1]))),
    "Concat": write_concat,
    "Pack": lambda op, b: b.store(op, b.aten("stack", b.stored_values(op), op["axis"])),
    "Unpack": write_unpack,
    "Split": write_split,
    "Slice": write_slice,
    "Pad": write_pad,
    "Gather": write_gather,
    **{
        kind: with_note(write)
        for kind, write in {
            "GatherND": write_gather_nd,
            "GatherElements": write_gather_elements,
            "ScatterND": write_scatter_nd,
            "ScatterElements": write_scatter_elements,
            "ReverseSequence": write_reverse_sequence,
            "UnsortedSegment": write_unsorted_segment,
            "TopK": write_top_k,
            "NonZero": write_non_zero,
            "OneHot": write_one_hot,
        }.items()
    },
}
