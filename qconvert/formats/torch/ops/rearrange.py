"""Other orders of elements: flips, rolls, shuffles, repetitions, and axes that move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.ops.shape import read_expand, read_transpose
from qconvert.formats.torch.ops.slice_concat import emit_slice
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.sizing import emit_reshape, read_batched, size_of, sizes_tensor
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]

_END = 2**63 - 1
#: Repetitions beyond which no list of indices is made.
_MOST = 2**20


def read_flip(c: Call) -> Ref:
    """aten::flip(x, dims): these axes backwards."""
    axes = [c.axis(axis, c.rank("self")) for axis in c.integers("dims")]
    if not axes:
        return Ref(c.name("self"))
    bounds = [(-1, "starts"), (-_END, "ends"), (None, "axes"), (-1, "steps")]
    lists = [c.list64(axes if value is None else [value] * len(axes), hint) for value, hint in bounds]
    return c.emit("Slice", [c.name("self"), *lists])


def read_side_flip(axis: int) -> Operator:
    """aten::fliplr, flipud."""

    def read(c: Call) -> Ref:
        lists = [c.list64([value], hint) for value, hint in ((-1, "starts"), (-_END, "ends"), (axis, "axes"), (-1, "steps"))]
        return c.emit("Slice", [c.name("self"), *lists])

    return Operator("T self", read)


def read_roll(c: Call) -> Ref:
    """aten::roll(x, shifts, dims): elements leave an axis at its end and come back at its beginning."""
    shifts, rank = c.integers("shifts"), c.rank("self")
    axes = [c.axis(axis, rank) for axis in c.integers("dims")] if c["dims"] else []
    name = c.name("self")
    if not axes:
        if len(shifts) != 1:
            raise c.invalid(f"there are {len(shifts)} shifts and no axes", rule="counts-differ")
        sizes = [size_of(c, name, axis) for axis in range(rank)]
        flat = emit_reshape(c, name, [-1], hint="flat").name
        return emit_reshape(c, _roll_axis(c, flat, 0, shifts[0], "turned"), sizes)
    if len(axes) != len(shifts):
        raise c.invalid(f"there are {len(shifts)} shifts for {len(axes)} axes", rule="counts-differ")
    for index, (axis, shift) in enumerate(zip(axes, shifts, strict=True)):
        name = _roll_axis(c, name, axis, shift, "" if index == len(axes) - 1 else f"turned{index}")
    return Ref(name)


def _roll_axis(c: Call, name: str, axis: int, shift: int, hint: str) -> str:
    size = (c.lookup(name).shape or ())[axis]
    if isinstance(size, int):
        shift = shift % size if size else 0
    if shift == 0:
        return name
    mark = f"{hint}_" if hint else ""
    last = emit_slice(c, name, axis, -shift, _END, hint=f"{mark}last")
    first = emit_slice(c, name, axis, 0, -shift, hint=f"{mark}first")
    return c.emit("Concat", [last.name, first.name], hint=hint, axis=axis).name


def read_pixel_shuffle(c: Call) -> Ref:
    """aten::pixel_shuffle(x, factor): channels C * r * r as C channels of blocks of r * r pixels."""
    factor = _factor(c, "upscale_factor")
    if factor == 1:
        return Ref(c.name("self"))

    def read(name: str) -> Ref:
        return c.emit("DepthToSpace", [name], blocksize=factor, mode="CRD", data_format="channels_first")

    return _read_images(c, read)


def read_pixel_unshuffle(c: Call) -> Ref:
    """aten::pixel_unshuffle(x, factor): SpaceToDepth, whose channels come in another order: by pixels of a block, then by channels."""
    factor = _factor(c, "downscale_factor")
    if factor == 1:
        return Ref(c.name("self"))

    def read(name: str) -> Ref:
        shape = c.lookup(name).shape
        channels = shape[1] if shape is not None else None
        if not isinstance(channels, int):
            raise c.unknown_shape("self")
        if channels * factor * factor > _MOST:
            raise c.unsupported_error(f"blocks of {factor} x {factor} elements of {channels} channels", rule="shape-not-covered")
        order = np.arange(channels * factor * factor).reshape(factor * factor, channels).T.reshape(-1)
        blocks = c.emit("SpaceToDepth", [name], hint="blocks", blocksize=factor, data_format="channels_first")
        return blocks if channels == 1 else c.emit("Gather", [blocks.name, c.const(order.astype(np.int64), "order")], axis=1)

    return _read_images(c, read)


def _factor(c: Call, argument: str) -> int:
    factor = c.integer(argument)
    if not 0 < factor < 2**16:
        raise c.invalid(f"the factor is {factor}", rule="number-out-of-range")
    return factor


def _read_images(c: Call, read: Any) -> Ref:
    if c.rank("self") not in (3, 4):
        raise c.unsupported_error(f"data of rank {c.rank('self')}", rule="wrong-rank")
    return read_batched(c, "self", 2, read)


def read_channel_shuffle(c: Call) -> Ref:
    """aten::channel_shuffle(x, groups): the first channels of all groups, then the second ones …"""
    groups = c.integer("groups")
    channels = (c.operand("self").shape or (None, None))[1] if c.rank("self") > 1 else None
    if not isinstance(channels, int):
        raise c.unknown_shape("self")
    if groups < 1 or channels % groups or channels > _MOST:
        raise c.invalid(f"{groups} groups do not divide {channels} channels", rule="sizes-do-not-divide")
    order = np.arange(channels, dtype=np.int64).reshape(groups, -1).T.reshape(-1)
    return c.emit("Gather", [c.name("self"), c.const(order, "order")], axis=1)


def read_movedim(c: Call) -> Ref:
    """aten::movedim(x, source, destination): axes go to other places, the rest keep their order."""
    rank = c.rank("self")
    source, destination = ([c.axis(axis, rank) for axis in c.integers(name)] for name in ("source", "destination"))
    if len(source) != len(destination) or len(set(source)) != len(source) or len(set(destination)) != len(destination):
        raise c.invalid(f"axes {source} moved to {destination}", rule="axis-out-of-range")
    placed = dict(zip(destination, source, strict=True))
    rest = iter(axis for axis in range(rank) if axis not in source)
    order = tuple(placed[axis] if axis in placed else next(rest) for axis in range(rank))
    return c.emit("Transpose", [c.name("self")], perm=order) if order != tuple(range(rank)) else Ref(c.name("self"))


def read_repeat_interleave(c: Call) -> Ref:
    """aten::repeat_interleave(x, repeats, dim): each element as often as a number, or one number an element, says."""
    name, rank = c.name("self"), c.rank("self")
    if c["dim"] is None:
        name, axis, rank = (emit_reshape(c, name, [-1], hint="flat").name if rank != 1 else name), 0, 1
    else:
        axis = c.axis(c.integer("dim"), rank)
    value = c["repeats"]
    counts = c.constant("repeats") if isinstance(value, Ref) and not value.number else None
    if counts is not None and counts.size > 1:
        if counts.sum() > _MOST or (counts < 0).any():
            raise c.invalid(f"the number of repetitions is {counts.sum()}", rule="too-many-elements")
        return c.emit("Gather", [name, c.const(np.repeat(np.arange(counts.size), counts.astype(np.int64)), "order")], axis=axis)
    if isinstance(value, Ref) and not value.number and counts is None:
        raise c.unsupported_error("repetitions that are computed at run time", rule="not-constant")
    times = c.whole(value, "repeats")
    if times == 1:
        return Ref(name)
    sizes = [size_of(c, name, each) for each in range(rank)]
    wider = c.emit("Unsqueeze", [name, c.list64([axis + 1], "axes")], hint="wider")
    repeated = c.emit(
        "Tile", [wider.name, c.list64([times if each == axis + 1 else 1 for each in range(rank + 1)], "repeats")], hint="repeated"
    )
    size = sizes[axis]
    sizes[axis] = size * times if isinstance(size, int) else -1
    return emit_reshape(c, repeated.name, sizes)


def _broadcast(c: Call, name: str, shape: Sequence[Any], hint: str = "") -> Ref:
    if c.lookup(name).shape == tuple(shape):
        return Ref(name)
    return c.emit("Expand", [name, sizes_tensor(c, shape, f"{hint}shape")], hint=hint)


def read_broadcast_tensors(c: Call) -> list[Ref]:
    """aten::broadcast_tensors(tensors): all in the shape that they have together."""
    names = c.names("tensors")
    shapes = [c.lookup(name).static_shape for name in names]
    if any(shape is None for shape in shapes):
        raise c.unknown_shape_of(names[shapes.index(None)])
    try:
        whole = np.broadcast_shapes(*(shape for shape in shapes if shape is not None))
    except ValueError as error:
        raise c.invalid(f"the shapes {shapes} cannot be broadcast", rule="shape-mismatch") from error
    return [_broadcast(c, name, whole, f"wide{index}") for index, name in enumerate(names)]


def read_matrix_transpose(c: Call) -> Ref:
    """x.mT: the last two axes swapped."""
    rank = c.rank("self")
    if rank < 2:
        raise c.invalid(f"data of rank {rank}", rule="wrong-rank")
    return c.emit("Transpose", [c.name("self")], perm=(*range(rank - 2), rank - 1, rank - 2))


OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    **{
        f"aten::{name}": [Operator(f"T self, i {mark}0, i {mark}1", read_transpose) for mark in ("dim", "axis")]
        for name in ("swapaxes", "swapdims")
    },
    **{f"aten::{name}": Operator("T self", read_matrix_transpose) for name in ("mT", "mH", "adjoint")},
    "aten::broadcast_to": Operator("T self, l size", read_expand),
    "aten::flip": Operator("T self, l dims", read_flip),
    "aten::fliplr": read_side_flip(1),
    "aten::flipud": read_side_flip(0),
    "aten::roll": Operator("T self, l shifts, l dims=()", read_roll),
    "aten::pixel_shuffle": Operator("T self, i upscale_factor", read_pixel_shuffle),
    "aten::pixel_unshuffle": Operator("T self, i downscale_factor", read_pixel_unshuffle),
    **{f"aten::{name}": Operator("T self, i groups", read_channel_shuffle) for name in ("channel_shuffle", "native_channel_shuffle")},
    **{f"aten::{name}": Operator("T self, l source, l destination", read_movedim) for name in ("movedim", "moveaxis")},
    "aten::repeat_interleave": Operator("T self, x repeats, i? dim=None, i? output_size=None", read_repeat_interleave),
    "aten::broadcast_tensors": Operator("t tensors", read_broadcast_tensors),
}
