"""Data movement: reshapes and axes of one element, which keep the order, and flips, rolls, shuffles, repetitions and axes that move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import emit_reshape, read_batched, size_of, sizes_tensor
from qconvert.formats.torch.ops.slice_concat import emit_slice
from qconvert.formats.torch.reading import Operator, ReadFunction, Reading
from qconvert.formats.torch.values import Ref, Uncomputed

__all__ = ["OPERATORS", "_SHAPE"]


def read_identity(c: Reading) -> Ref:
    """Operators that return their input: contiguous, clone, detach, dropout of a model that is not trained."""
    return Ref(c.name("self"))


def read_dropout(c: Reading, data: str = "input") -> Ref:
    """Dropout: the identity in inference; training is not covered."""
    if c["train"] and c.number("p"):
        raise c.unsupported_error("training mode; call model.eval() before the export,", rule="training-mode")
    return Ref(c.name(data))


def read_dropout_in_place(c: Reading) -> Ref:
    """aten::dropout_, whose data have another name."""
    return read_dropout(c, "self")


def read_reshape(argument: str) -> Operator:
    """aten::reshape and aten::view: at most one size may be -1, what is left."""

    def read(c: Reading) -> Ref:
        return emit_reshape(c, c.name("self"), c[argument])

    return Operator(f"T self, l {argument}", read)


def read_flatten(c: Reading) -> Ref:
    """aten::flatten(x, start_dim, end_dim): these axes as one."""
    rank = c.rank("self")
    if rank == 0:
        return emit_reshape(c, c.name("self"), [1])
    first, last = (c.axis(c.integer(name), rank) for name in ("start_dim", "end_dim"))
    name = c.name("self")
    sizes = [size_of(c, name, axis) for axis in range(rank) if axis < first or axis > last]
    return emit_reshape(c, name, [*sizes[:first], -1, *sizes[first:]])


def read_unflatten(c: Reading) -> Ref:
    """aten::unflatten(x, dim, sizes): one axis as several."""
    rank, name = c.rank("self"), c.name("self")
    axis = c.axis(c.integer("dim"), rank)
    sizes = [size_of(c, name, index) for index in range(rank)]
    return emit_reshape(c, name, [*sizes[:axis], *c["sizes"], *sizes[axis + 1 :]])


def read_view_as(c: Reading) -> Ref:
    """aten::view_as and aten::reshape_as."""
    other = c.name("other")
    return emit_reshape(c, c.name("self"), [size_of(c, other, axis) for axis in range(c.rank("other"))])


def read_unsqueeze(c: Reading) -> Ref:
    """aten::unsqueeze(x, dim)."""
    axis = c.axis(c.integer("dim"), c.rank("self") + 1)
    return c.emit("Unsqueeze", [c.name("self"), c.list64([axis], "axes")])


def read_squeeze(c: Reading) -> Ref:
    """aten::squeeze(x, dims): those of the axes that have one element."""
    shape, rank = c.operand("self").shape, c.rank("self")
    wanted = range(rank) if "dim" not in c or c["dim"] is None else [c.axis(axis, rank) for axis in c.integers("dim")]
    if shape is None or any(isinstance(shape[axis], str) for axis in wanted):
        raise c.unknown_shape("self")
    axes = [axis for axis in wanted if shape[axis] == 1]
    return c.emit("Squeeze", [c.name("self"), c.list64(axes, "axes")]) if axes else Ref(c.name("self"))


def read_permute(c: Reading) -> Ref:
    """aten::permute(x, dims)."""
    rank = c.rank("self")
    axes = tuple(c.axis(axis, rank) for axis in c.integers("dims"))
    if sorted(axes) != list(range(rank)):
        raise c.invalid(f"{axes} is not a permutation of {rank} axes", rule="not-a-permutation")
    return c.emit("Transpose", [c.name("self")], perm=axes)


def read_transpose(c: Reading) -> Ref:
    """aten::transpose(x, dim0, dim1): two axes change places."""
    rank = c.rank("self")
    order: list[int] = list(range(rank))
    first, second = (c.axis(c.integer(name), rank) for name in (("dim0", "dim1") if "dim0" in c else ("axis0", "axis1")))
    order[first], order[second] = second, first
    return c.emit("Transpose", [c.name("self")], perm=tuple(order)) if first != second else Ref(c.name("self"))


def read_reversed_axes(c: Reading) -> Ref:
    """aten::t(x) and x.T: the axes in reverse order."""
    rank = c.rank("self")
    return c.emit("Transpose", [c.name("self")], perm=tuple(range(rank))[::-1]) if rank > 1 else Ref(c.name("self"))


def read_expand(c: Reading) -> Ref:
    """aten::expand(x, size): axes of one element repeated; -1 keeps a size."""
    name, rank, sizes = c.name("self"), c.rank("self"), c["size"]
    before = len(sizes) - rank
    kept: list[Any] = [size_of(c, name, axis - before) if size == -1 and axis >= before else size for axis, size in enumerate(sizes)]
    return c.emit("Expand", [name, sizes_tensor(c, kept, "shape")])


def read_expand_as(c: Reading) -> Ref:
    """aten::expand_as(x, other): to the other's shape."""
    other = c.name("other")
    return c.emit("Expand", [c.name("self"), sizes_tensor(c, [size_of(c, other, axis) for axis in range(c.rank("other"))], "shape")])


def read_repeat(argument: str) -> ReadFunction:
    """aten::repeat(x, repeats), tile(x, dims): the whole along each of the last axes; further axes come first."""

    def read(c: Reading) -> Ref:
        name, rank, repeats = c.name("self"), c.rank("self"), list(c[argument])
        repeats = [1] * (rank - len(repeats)) + repeats
        missing = len(repeats) - rank
        if missing > 0:
            sizes = [size_of(c, name, axis) for axis in range(rank)]
            name = emit_reshape(c, name, [1] * missing + sizes, hint="wider").name
        return c.emit("Tile", [name, sizes_tensor(c, repeats, "repeats")])

    return read


_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")

_SHAPE: dict[str, Operator | Sequence[Operator]] = {
    "aten::reshape": read_reshape("shape"),
    "aten::view": read_reshape("size"),
    "aten::_unsafe_view": read_reshape("size"),
    "aten::flatten": Operator("T self, i start_dim=0, i end_dim=-1", read_flatten),
    "aten::ravel": Operator("T self", lambda c: emit_reshape(c, c.name("self"), [-1])),
    "aten::unflatten": Operator("T self, i dim, l sizes", read_unflatten),
    **{f"aten::{name}": Operator("T self, T other", read_view_as) for name in ("view_as", "reshape_as")},
    "aten::unsqueeze": Operator("T self, i dim", read_unsqueeze),
    "aten::squeeze": [Operator("T self", read_squeeze), Operator("T self, l dim", read_squeeze)],
    "aten::permute": Operator("T self, l dims", read_permute),
    "aten::transpose": Operator("T self, i dim0, i dim1", read_transpose),
    **{f"aten::{name}": Operator("T self", read_reversed_axes) for name in ("t", "numpy_T")},
    "aten::expand": Operator("T self, l size, b implicit=False", read_expand),
    "aten::expand_as": Operator("T self, T other", read_expand_as),
    "aten::repeat": Operator("T self, l repeats", read_repeat("repeats")),
    "aten::tile": Operator("T self, l dims", read_repeat("dims")),
    **{f"aten::{name}": Operator("T self", read_identity) for name in ("alias", "lift_fresh_copy", "detach_copy")},
    "aten::detach": [Operator("T self", read_identity), Operator("x self", lambda c: c["self"])],
    "aten::contiguous": Operator("T self, i? memory_format=0", read_identity),
    "aten::clone": Operator("T self, i? memory_format=None", read_identity),
    **{f"aten::{name}": Operator("T input, f p=0.5, b train=False", read_dropout) for name in _DROPOUTS},
    **{f"aten::{name}_": Operator("T self, f p=0.5, b train=False", read_dropout_in_place) for name in _DROPOUTS},
    "aten::native_dropout": Operator("T input, f p, b? train=False", lambda c: (read_dropout(c), Uncomputed("the mask of a dropout"))),
    "quantized::dropout": Operator("T self, f output_scale, i output_zero_point, f p=0.5, b training=False", read_identity),
}


_END = 2**63 - 1
#: Repetitions beyond which no list of indices is made.
_MOST = 2**20


def read_flip(c: Reading) -> Ref:
    """aten::flip(x, dims): these axes backwards."""
    axes = [c.axis(axis, c.rank("self")) for axis in c.integers("dims")]
    if not axes:
        return Ref(c.name("self"))
    bounds = [(-1, "starts"), (-_END, "ends"), (None, "axes"), (-1, "steps")]
    lists = [c.list64(axes if value is None else [value] * len(axes), hint) for value, hint in bounds]
    return c.emit("Slice", [c.name("self"), *lists])


def read_side_flip(axis: int) -> Operator:
    """aten::fliplr, flipud."""

    def read(c: Reading) -> Ref:
        lists = [c.list64([value], hint) for value, hint in ((-1, "starts"), (-_END, "ends"), (axis, "axes"), (-1, "steps"))]
        return c.emit("Slice", [c.name("self"), *lists])

    return Operator("T self", read)


def read_roll(c: Reading) -> Ref:
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


def _roll_axis(c: Reading, name: str, axis: int, shift: int, hint: str) -> str:
    size = (c.lookup(name).shape or ())[axis]
    if isinstance(size, int):
        shift = shift % size if size else 0
    if shift == 0:
        return name
    mark = f"{hint}_" if hint else ""
    last = emit_slice(c, name, axis, -shift, _END, hint=f"{mark}last")
    first = emit_slice(c, name, axis, 0, -shift, hint=f"{mark}first")
    return c.emit("Concat", [last.name, first.name], hint=hint, axis=axis).name


def read_pixel_shuffle(c: Reading) -> Ref:
    """aten::pixel_shuffle(x, factor): channels C * r * r as C channels of blocks of r * r pixels."""
    factor = _factor(c, "upscale_factor")
    if factor == 1:
        return Ref(c.name("self"))

    def read(name: str) -> Ref:
        return c.emit("DepthToSpace", [name], blocksize=factor, mode="CRD", data_format="channels_first")

    return _read_images(c, read)


def read_pixel_unshuffle(c: Reading) -> Ref:
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


def _factor(c: Reading, argument: str) -> int:
    factor = c.integer(argument)
    if not 0 < factor < 2**16:
        raise c.invalid(f"the factor is {factor}", rule="number-out-of-range")
    return factor


def _read_images(c: Reading, read: Any) -> Ref:
    if c.rank("self") not in (3, 4):
        raise c.unsupported_error(f"data of rank {c.rank('self')}", rule="wrong-rank")
    return read_batched(c, "self", 2, read)


def read_channel_shuffle(c: Reading) -> Ref:
    """aten::channel_shuffle(x, groups): the first channels of all groups, then the second ones …"""
    groups = c.integer("groups")
    channels = (c.operand("self").shape or (None, None))[1] if c.rank("self") > 1 else None
    if not isinstance(channels, int):
        raise c.unknown_shape("self")
    if groups < 1 or channels % groups or channels > _MOST:
        raise c.invalid(f"{groups} groups do not divide {channels} channels", rule="sizes-do-not-divide")
    order = np.arange(channels, dtype=np.int64).reshape(groups, -1).T.reshape(-1)
    return c.emit("Gather", [c.name("self"), c.const(order, "order")], axis=1)


def read_movedim(c: Reading) -> Ref:
    """aten::movedim(x, source, destination): axes go to other places, the rest keep their order."""
    rank = c.rank("self")
    source, destination = ([c.axis(axis, rank) for axis in c.integers(name)] for name in ("source", "destination"))
    if len(source) != len(destination) or len(set(source)) != len(source) or len(set(destination)) != len(destination):
        raise c.invalid(f"axes {source} moved to {destination}", rule="axis-out-of-range")
    placed = dict(zip(destination, source, strict=True))
    rest = iter(axis for axis in range(rank) if axis not in source)
    order = tuple(placed[axis] if axis in placed else next(rest) for axis in range(rank))
    return c.emit("Transpose", [c.name("self")], perm=order) if order != tuple(range(rank)) else Ref(c.name("self"))


def read_repeat_interleave(c: Reading) -> Ref:
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


def _broadcast(c: Reading, name: str, shape: Sequence[Any], hint: str = "") -> Ref:
    if c.lookup(name).shape == tuple(shape):
        return Ref(name)
    return c.emit("Expand", [name, sizes_tensor(c, shape, f"{hint}shape")], hint=hint)


def read_broadcast_tensors(c: Reading) -> list[Ref]:
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


def read_matrix_transpose(c: Reading) -> Ref:
    """x.mT: the last two axes swapped."""
    rank = c.rank("self")
    if rank < 2:
        raise c.invalid(f"data of rank {rank}", rule="wrong-rank")
    return c.emit("Transpose", [c.name("self")], perm=(*range(rank - 2), rank - 1, rank - 2))


OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    **_SHAPE,
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
