"""Elements that are taken, put or ordered at indices: on the integers as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.program import Node
from qconvert.formats.torch.writing import Builder, along_axis, with_note
from qconvert.graph import Op, numpy_dtype
from qconvert.operators.segments import first_value

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
    if isinstance(size, str):
        raise b.unsupported_error(op, "indices along an axis of unknown size", rule="unknown-size")
    return b.aten("remainder.Scalar", node, size)


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
        node = b.cast(b.aten("clamp", node, *b.limits(tensor.dtype, tensor.quantization)), tensor.dtype)
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
            dtype = b.tensor(name).dtype
            b.set_node(name, b.cast(node, dtype) if place and dtype != "int64" else node)


def write_non_zero(op: Op, b: Builder) -> None:
    """NonZero: as many columns as there are."""
    quantized = b.operand(op).is_quantized
    found = b.aten("permute", b.aten("nonzero", (b.float_value if quantized else b.stored_value)(op.inputs[0])), [1, 0])
    dtype = b.result(op).dtype
    b.store(op, found if dtype == "int64" else b.cast(found, dtype))


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


#: All of them are recognized by notes alone.
WRITERS = {
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
}
