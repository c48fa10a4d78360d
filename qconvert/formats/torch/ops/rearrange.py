"""Data movement: reshapes and axes of one element, which keep the order, and flips, rolls, shuffles, repetitions and axes that move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import emit_broadcast, emit_reshape, emit_transpose, read_batched, size_of, sizes_of, sizes_tensor
from qconvert.formats.torch.ops.slice_concat import END, emit_slice
from qconvert.formats.torch.reading import ReadFunction, Reading, with_unused
from qconvert.formats.torch.values import Ref, Uncomputed


def read_dropout(c: Reading) -> str:
    """Dropout: the identity in inference; training is not covered."""
    if c["train"] and c.number("p"):
        raise c.unsupported_error("training mode; call model.eval() before the export,", rule="training-mode")
    return c.name()


def read_reshape(c: Reading) -> str:
    """aten::reshape and aten::view: at most one size may be -1, what is left."""
    return emit_reshape(c, c.name(), c[c.arguments[1]])


def read_flatten(c: Reading) -> str:
    """aten::flatten(x, start_dim, end_dim): these axes as one."""
    rank = c.rank()
    if rank == 0:
        return emit_reshape(c, c.name(), [1])
    first, last = (c.axis(c.integer(name), rank) for name in ("start_dim", "end_dim"))
    name = c.name()
    sizes = [size_of(c, name, axis) for axis in range(rank) if axis < first or axis > last]
    return emit_reshape(c, name, [*sizes[:first], -1, *sizes[first:]])


def read_unflatten(c: Reading) -> str:
    """aten::unflatten(x, dim, sizes): one axis as several."""
    axis, name = c.axis_of(), c.name()
    sizes = sizes_of(c)
    return emit_reshape(c, name, [*sizes[:axis], *c["sizes"], *sizes[axis + 1 :]])


def read_unsqueeze(c: Reading) -> str:
    """aten::unsqueeze(x, dim)."""
    axis = c.axis(c.integer("dim"), c.rank() + 1)
    return c.emit("Unsqueeze", [c.name(), c.list64([axis], "axes")])


def read_squeeze(c: Reading) -> str:
    """aten::squeeze(x, dims): those of the axes that have one element."""
    rank = c.rank()
    wanted = range(rank) if "dim" not in c or c["dim"] is None else [c.axis(axis, rank) for axis in c.integers("dim")]
    axes = [axis for axis in wanted if c.static_size(axis) == 1]
    return c.emit("Squeeze", [c.name(), c.list64(axes, "axes")]) if axes else c.name()


def read_permute(c: Reading) -> str:
    """aten::permute(x, dims)."""
    rank = c.rank()
    axes = tuple(c.axis(axis, rank) for axis in c.integers("dims"))
    if sorted(axes) != list(range(rank)):
        raise c.invalid(f"{axes} is not a permutation of {rank} axes", rule="not-a-permutation")
    return c.emit("Transpose", [c.name()], perm=axes)


def read_transpose(c: Reading) -> str:
    """aten::transpose(x, dim0, dim1): two axes change places."""
    order = list(range(c.rank()))
    first, second = map(c.axis_of, c.arguments[1:])
    order[first], order[second] = second, first
    return emit_transpose(c, c.name(), order)


def read_expand(c: Reading) -> str:
    """aten::expand(x, size): axes of one element repeated; -1 keeps a size."""
    name, rank, sizes = c.name(), c.rank(), c["size"]
    before = len(sizes) - rank
    kept: list[Any] = [size_of(c, name, axis - before) if size == -1 and axis >= before else size for axis, size in enumerate(sizes)]
    return c.emit("Expand", [name, sizes_tensor(c, kept, "shape")])


def read_repeat(c: Reading) -> str:
    """aten::repeat(x, repeats), tile(x, dims): the whole along each of the last axes; further axes come first."""
    name, rank, repeats = c.name(), c.rank(), list(c[c.arguments[1]])
    repeats = [1] * (rank - len(repeats)) + repeats
    missing = len(repeats) - rank
    if missing > 0:
        sizes = sizes_of(c)
        name = emit_reshape(c, name, [1] * missing + sizes, hint="wider")
    return c.emit("Tile", [name, sizes_tensor(c, repeats, "repeats")])


_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")


#: Repetitions beyond which no list of indices is made.
_MOST = 2**20


def _emit_flip(c: Reading, axes: Sequence[int]) -> str:
    count = len(axes)
    bounds = (([-1] * count, "starts"), ([-END] * count, "ends"), (axes, "axes"), ([-1] * count, "steps"))
    return c.emit("Slice", [c.name(), *(c.list64(values, hint) for values, hint in bounds)])


def read_flip(c: Reading) -> str:
    """aten::flip(x, dims): these axes backwards."""
    axes = [c.axis(axis, c.rank()) for axis in c.integers("dims")]
    return _emit_flip(c, axes) if axes else c.name()


def read_roll(c: Reading) -> str:
    """aten::roll(x, shifts, dims): elements leave an axis at its end and come back at its beginning."""
    shifts, rank = c.integers("shifts"), c.rank()
    axes = [c.axis(axis, rank) for axis in c.integers("dims")] if c["dims"] else []
    name = c.name()
    if not axes:
        if len(shifts) != 1:
            raise c.invalid(f"there are {len(shifts)} shifts and no axes", rule="counts-differ")
        sizes = sizes_of(c)
        flat = emit_reshape(c, name, [-1], hint="flat")
        return emit_reshape(c, _roll_axis(c, flat, 0, shifts[0], "turned"), sizes)
    if len(axes) != len(shifts):
        raise c.invalid(f"there are {len(shifts)} shifts for {len(axes)} axes", rule="counts-differ")
    for index, (axis, shift) in enumerate(zip(axes, shifts, strict=True)):
        name = _roll_axis(c, name, axis, shift, "" if index == len(axes) - 1 else f"turned{index}")
    return name


def _roll_axis(c: Reading, name: str, axis: int, shift: int, hint: str) -> str:
    size = c.shape_of(name)[axis]
    if isinstance(size, int):
        shift = shift % size if size else 0
    if shift == 0:
        return name
    mark = f"{hint}_" if hint else ""
    last = emit_slice(c, name, axis, -shift, END, hint=f"{mark}last")
    first = emit_slice(c, name, axis, 0, -shift, hint=f"{mark}first")
    return c.emit("Concat", [last, first], hint=hint, axis=axis)


def read_pixel_shuffle(c: Reading) -> str:
    """aten::pixel_shuffle(x, factor): channels C * r * r as C channels of blocks of r * r pixels."""
    factor = _factor(c, "upscale_factor")
    if factor == 1:
        return c.name()
    return _read_images(c, lambda name: c.emit("DepthToSpace", [name], blocksize=factor, mode="CRD", data_format="channels_first"))


def read_pixel_unshuffle(c: Reading) -> str:
    """aten::pixel_unshuffle(x, factor): SpaceToDepth, whose channels come in another order: by pixels of a block, then by channels."""
    factor = _factor(c, "downscale_factor")
    if factor == 1:
        return c.name()

    def read(name: str) -> str:
        channels = c.static_size(1, name)
        if channels * factor * factor > _MOST:
            raise c.unsupported_error(f"blocks of {factor} x {factor} elements of {channels} channels", rule="shape-not-covered")
        order = np.arange(channels * factor * factor).reshape(factor * factor, channels).T.reshape(-1)
        blocks = c.emit("SpaceToDepth", [name], hint="blocks", blocksize=factor, data_format="channels_first")
        return blocks if channels == 1 else c.emit("Gather", [blocks, c.const(order.astype(np.int64), "order")], axis=1)

    return _read_images(c, read)


def _factor(c: Reading, argument: str) -> int:
    factor = c.integer(argument)
    if not 0 < factor < 2**16:
        raise c.invalid(f"the factor is {factor}", rule="number-out-of-range")
    return factor


def _read_images(c: Reading, read: Any) -> str:
    if c.rank() not in (3, 4):
        raise c.unsupported_error(f"data of rank {c.rank('self')}", rule="wrong-rank")
    return read_batched(c, 2, read)


def read_channel_shuffle(c: Reading) -> str:
    """aten::channel_shuffle(x, groups): the first channels of all groups, then the second ones …"""
    groups = c.integer("groups")
    if c.rank() < 2:
        raise c.unknown_shape()
    channels = c.static_size(1)
    if groups < 1 or channels % groups or channels > _MOST:
        raise c.invalid(f"{groups} groups do not divide {channels} channels", rule="sizes-do-not-divide")
    order = np.arange(channels, dtype=np.int64).reshape(groups, -1).T.reshape(-1)
    return c.emit("Gather", [c.name(), c.const(order, "order")], axis=1)


def read_movedim(c: Reading) -> str:
    """aten::movedim(x, source, destination): axes go to other places, the rest keep their order."""
    rank = c.rank()
    source, destination = ([c.axis(axis, rank) for axis in c.integers(name)] for name in ("source", "destination"))
    if len(source) != len(destination) or len(set(source)) != len(source) or len(set(destination)) != len(destination):
        raise c.invalid(f"axes {source} moved to {destination}", rule="axis-out-of-range")
    placed = dict(zip(destination, source, strict=True))
    rest = iter(axis for axis in range(rank) if axis not in source)
    return emit_transpose(c, c.name(), [placed[axis] if axis in placed else next(rest) for axis in range(rank)])


def read_repeat_interleave(c: Reading) -> str:
    """aten::repeat_interleave(x, repeats, dim): each element as often as a number, or one number an element, says."""
    name, rank = c.name(), c.rank()
    if c["dim"] is None:
        name, axis, rank = (emit_reshape(c, name, [-1], hint="flat") if rank != 1 else name), 0, 1
    else:
        axis = c.axis_of()
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
        return name
    sizes = [size_of(c, name, each) for each in range(rank)]
    wider = c.emit("Unsqueeze", [name, c.list64([axis + 1], "axes")], hint="wider")
    repeated = c.emit("Tile", [wider, c.list64([times if each == axis + 1 else 1 for each in range(rank + 1)], "repeats")], hint="repeated")
    size = sizes[axis]
    sizes[axis] = size * times if isinstance(size, int) else -1
    return emit_reshape(c, repeated, sizes)


def read_matrix_transpose(c: Reading) -> str:
    """x.mT: the last two axes swapped."""
    rank = c.rank()
    if rank < 2:
        raise c.invalid(f"data of rank {rank}", rule="wrong-rank")
    return c.emit("Transpose", [c.name()], perm=(*range(rank - 2), rank - 1, rank - 2))


OPERATORS: Mapping[str, ReadFunction] = {
    "aten::reshape(T self, l shape)": read_reshape,
    "aten::view|_unsafe_view(T self, l size)": read_reshape,
    "aten::flatten(T self, i start_dim=0, i end_dim=-1)": read_flatten,
    "aten::ravel(T self)": lambda c: emit_reshape(c, c.name(), [-1]),
    "aten::unflatten(T self, i dim, l sizes)": read_unflatten,
    "aten::view_as|reshape_as(T self, T other)": lambda c: emit_reshape(c, c.name(), sizes_of(c, "other")),
    "aten::unsqueeze(T self, i dim)": read_unsqueeze,
    "aten::squeeze(T self)": read_squeeze,
    "aten::squeeze(T self, l dim)": read_squeeze,
    "aten::permute(T self, l dims)": read_permute,
    "aten::transpose(T self, i dim0, i dim1)": read_transpose,
    "aten::t|numpy_T(T self)": lambda c: emit_transpose(c, c.name(), range(c.rank())[::-1]),
    "aten::expand(T self, l size, b implicit=False)": read_expand,
    "aten::expand_as(T self, T other)": lambda c: c.emit("Expand", [c.name(), sizes_tensor(c, sizes_of(c, "other"), "shape")]),
    "aten::repeat(T self, l repeats)": read_repeat,
    "aten::tile(T self, l dims)": read_repeat,
    "aten::alias|lift_fresh_copy|detach_copy|detach(T self)": Reading.name,
    "aten::detach(x self)": lambda c: c["self"],
    "aten::contiguous(T self, i? memory_format=0)": Reading.name,
    "aten::clone(T self, i? memory_format=None)": Reading.name,
    **{f"aten::{name}(T input, f p=0.5, b train=False)": read_dropout for name in _DROPOUTS},
    **{f"aten::{name}_(T self, f p=0.5, b train=False)": read_dropout for name in _DROPOUTS},
    "aten::native_dropout(T input, f p, b? train=False)": with_unused(read_dropout, Uncomputed("the mask of a dropout")),
    "quantized::dropout(T self, f output_scale, i output_zero_point, f p=0.5, b training=False)": Reading.name,
    "aten::swapaxes|swapdims(T self, i dim0, i dim1)": read_transpose,
    "aten::swapaxes|swapdims(T self, i axis0, i axis1)": read_transpose,
    "aten::mT|mH|adjoint(T self)": read_matrix_transpose,
    "aten::broadcast_to(T self, l size)": read_expand,
    "aten::flip(T self, l dims)": read_flip,
    "aten::fliplr(T self)": lambda c: _emit_flip(c, [1]),
    "aten::flipud(T self)": lambda c: _emit_flip(c, [0]),
    "aten::roll(T self, l shifts, l dims=())": read_roll,
    "aten::pixel_shuffle(T self, i upscale_factor)": read_pixel_shuffle,
    "aten::pixel_unshuffle(T self, i downscale_factor)": read_pixel_unshuffle,
    "aten::channel_shuffle|native_channel_shuffle(T self, i groups)": read_channel_shuffle,
    "aten::movedim|moveaxis(T self, l source, l destination)": read_movedim,
    "aten::repeat_interleave(T self, x repeats, i? dim=None, i? output_size=None)": read_repeat_interleave,
    "aten::broadcast_tensors(t tensors)": lambda c: emit_broadcast(c, c.names("tensors"))[0],
}
