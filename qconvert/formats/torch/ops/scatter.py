"""Tensors of which a part is replaced: at places that indices or truth values name (scatter, index_put and their kin), or a slice, as
decompositions leave changes in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import cast_operand, emit_expand, emit_reshape, emit_transpose, size_of, sizes_of
from qconvert.formats.torch.ops.gathering import combine_indices, emit_places, indices_of, read_indices
from qconvert.formats.torch.ops.slice_concat import END, emit_slice
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments


def read_copy(c: Reading) -> str:
    """aten::copy(self, src): the values of one tensor in the shape and type of another."""
    tensor = c.operand()
    source = cast_operand(c, c["src"], tensor.dtype, "source")
    return source if c.lookup(source).shape == tensor.shape else emit_expand(c, source, sizes_of(c))


def _replace_slice(c: Reading, source: str, axis: int, start: Any, end: Any) -> str:
    """A tensor with what lies between two positions of an axis replaced; positions below 0 count from the end, None is the end."""
    name, size = c.name(), c.size(axis)
    if isinstance(size, int) and isinstance(start, int) and (end is None or isinstance(end, int)):
        start, end = (min(max(value + size if value < 0 else value, 0), size) for value in (start, size if end is None else end))
        end = max(start, end)
        bounds = start > 0, end > start, end < size
    else:
        bounds = start != 0, True, end is not None
    parts = [emit_slice(c, name, axis, 0, start, hint="before")] if bounds[0] else []
    parts += [source] if bounds[1] else []
    parts += [emit_slice(c, name, axis, end, END, hint="behind")] if bounds[2] else []
    return c.emit("Concat", parts, axis=axis) if len(parts) > 1 else parts[0] if parts else name


def _replace_strided(c: Reading, source: str, axis: int, start: int, end: int, step: int) -> str:
    """A tensor with each `step`th index of an axis replaced: both one after the other, and of each index the one or the other."""
    size = c.static_shape()[axis]
    c.take(8 * size)
    places = np.arange(size)
    replaced = places[start:end:step]
    places[replaced] = size + np.arange(len(replaced))
    both = c.emit("Concat", [c.name(), source], hint="both", axis=axis)
    return c.emit("Gather", [both, c.const(places, "places")], axis=axis)


def read_slice_scatter(c: Reading) -> str:
    """aten::slice_scatter(self, src, dim, start, end, step)."""
    axis, step = c.axis_of(), c.integer("step")
    if step < 1:
        raise c.invalid(f"the step of the slice is {step}", rule="step-out-of-range")
    source = cast_operand(c, c["src"], c.operand().dtype, "source")
    if step > 1:
        start, end = (default if c[name] is None else c.integer(name) for name, default in (("start", 0), ("end", END)))
        return _replace_strided(c, source, axis, start, end, step)
    end = c["end"]
    return _replace_slice(c, source, axis, 0 if c["start"] is None else c["start"], None if isinstance(end, int) and end >= END else end)


def read_select_scatter(c: Reading) -> str:
    """aten::select_scatter(self, src, dim, index)."""
    axis, index = c.axis_of(), c.integer("index")
    source = cast_operand(c, c["src"], c.operand().dtype, "source")
    wide = c.emit("Unsqueeze", [source, c.list64([axis], "axes")], hint="wide")
    return _replace_slice(c, wide, axis, index, index + 1 if index != -1 else None)


_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def _values(c: Reading, argument: str) -> str:
    """Numbers or a tensor cast to the type of the data. Quantized data are not covered."""
    c.require_plain(c.name())
    return cast_operand(c, c[argument], c.operand().dtype, argument)


def _axis_and_indices(c: Reading) -> tuple[str, int, str]:
    """Data, the axis, and the indices along it; the data have one at least."""
    rank = c.rank()
    axis = c.axis(c.integer("dim"), max(rank, 1))
    if rank == 0:
        raise c.unsupported_error("data of rank 0", rule="wrong-rank")
    return c.name(), axis, indices_of(c, c.name("index"), c.size(axis))


@with_arguments
def read_scatter(c: Reading, value: str, reduction: str = "none") -> str:
    """aten::scatter(x, dim, index, src), scatter_add: for each index, an element goes to that place of the axis."""
    name, axis, index = _axis_and_indices(c)
    values, shape = _values(c, value), c.lookup(index).shape
    if shape is None or len(shape) != c.rank():
        raise c.invalid(f"indices of shape {shape} do not fit data of rank {c.rank('self')}", rule="shape-mismatch")
    if c.lookup(values).rank == 0:
        values = emit_expand(c, values, [size_of(c, index, each) for each in range(len(shape))], "values")
    for each, (size, have) in enumerate(zip(shape, c.lookup(values).shape or (), strict=True)):
        if isinstance(size, int) and size != have:
            values = emit_slice(c, values, each, 0, size, hint=f"first{each}")
    stated = c.get("reduce")
    if stated is not None and stated not in _REDUCTIONS:
        raise c.unsupported_error(f"the reduction {stated}")
    if stated is not None and not c.get("include_self", True):
        raise c.unsupported_error("a reduction without the data (include_self=False)")
    return c.emit("ScatterElements", [name, index, values], axis=axis, reduction=_REDUCTIONS[stated] if stated else reduction)


def _put_slices(c: Reading, name: str, axis: int, index: str, values: str, reduction: str) -> str:
    """Whole slices of an axis: it comes to the front, where one ScatterND takes them."""
    rank = c.lookup(name).rank or 0
    order = (axis, *(other for other in range(rank) if other != axis))
    turned = [emit_transpose(c, each, order, "front") for each in (name, values)]
    places = emit_reshape(c, index, [-1, 1], hint="places_")
    found = c.emit("ScatterND", [turned[0], places, turned[1]], reduction=reduction, hint="put" if axis else "")
    return emit_transpose(c, found, np.argsort(order).tolist())


def read_index_fill(c: Reading) -> str:
    """aten::index_fill(x, dim, index, value)."""
    name, axis, index = _axis_and_indices(c)
    sizes = sizes_of(c)
    sizes[axis] = size_of(c, emit_reshape(c, index, [-1], hint="list_"), 0)
    return _put_slices(c, name, axis, index, emit_expand(c, _values(c, "value"), sizes, "values"), "none")


def read_index_copy(c: Reading) -> str:
    """aten::index_copy(x, dim, index, source)."""
    name, axis, index = _axis_and_indices(c)
    return _put_slices(c, name, axis, index, _values(c, "source"), "none")


def read_index_add(c: Reading) -> str:
    """aten::index_add(x, dim, index, source, alpha)."""
    name, axis, index = _axis_and_indices(c)
    values = _values(c, "source")
    if c.number("alpha") != 1:
        values = c.emit("Mul", [values, c.real_constant(c.number("alpha"), values, "alpha")], hint="scaled")
    return _put_slices(c, name, axis, index, values, "add")


def read_index_put(c: Reading) -> str:
    """aten::index_put(x, indices, values, accumulate), x[a, :, b] = y: indices as of aten::index, or truth values."""
    rank, (chosen, names), adds = c.rank(), read_indices(c), bool(c["accumulate"])
    if c.lookup(names[0]).dtype == "bool" and len(names) == 1 and c.known(names[0]) is None:
        return _put_masked(c, chosen[0], names[0], rank, adds)
    places = [indices_of(c, name, c.size(axis)) for axis, name in zip(chosen, names, strict=True)]
    index, whole = combine_indices(c, places)
    rest = [axis for axis in range(rank) if axis not in chosen]
    order = (*chosen, *rest)
    data = emit_transpose(c, c.name(), order, "front")
    sizes = [*whole, *(size_of(c, c.name(), axis) for axis in rest)]
    values = emit_expand(c, _move_index_axes(c, _values(c, "values"), chosen, len(whole), rank), sizes, "values")
    found = c.emit("ScatterND", [data, index, values], reduction="add" if adds else "none", hint="" if data == c.name() else "put")
    return emit_transpose(c, found, np.argsort(order).tolist())


def _move_index_axes(c: Reading, values: str, chosen: list[int], count: int, rank: int) -> str:
    """Values with the axes of the indices first; x[:, i] has them at the position of the first index."""
    have, first = c.lookup(values).rank or 0, chosen[0]
    neighbours = chosen == list(range(first, first + len(chosen)))
    full = count + rank - len(chosen)
    if not first or not neighbours or have <= full - first - count:
        return values
    missing = full - have
    if missing:
        values = emit_reshape(c, values, [1] * missing + [size_of(c, values, axis) for axis in range(have)], hint="wide_")
    order = (*range(first, first + count), *range(first), *range(first + count, full))
    return c.emit("Transpose", [values], perm=order, hint="values_front")


def _put_masked(c: Reading, axis: int, mask: str, rank: int, adds: bool) -> str:
    """Elements where a mask is true: all the same, or each its own in their order."""
    name, count = c.name(), c.lookup(mask).rank or 0
    values = _values(c, "values")
    following = rank - axis - count
    if (c.lookup(values).rank or 0) <= following or c.lookup(values).static_shape == (1,):
        if following:
            mask = emit_reshape(c, mask, [*(size_of(c, mask, each) for each in range(count)), *[1] * following], hint="mask_")
        total = c.emit("Add", [name, values], hint="total") if adds else values
        return c.emit("Where", [mask, total, name])
    if axis:
        raise c.unsupported_error("a mask after other axes, with values of more than one element,")
    return c.emit("ScatterND", [name, emit_places(c, mask, "rows"), values], reduction="add" if adds else "none")


def read_take_along(c: Reading) -> str:
    """aten::take_along_dim(x, indices, dim): as gather, of axes that go together."""
    name, rank = c.name(), c.rank()
    if c["dim"] is None:
        raise c.unsupported_error("no axis")
    axis = c.axis_of()
    shape, wanted = c.operand().static_shape, c.operand("indices").static_shape
    if shape is None or wanted is None or len(wanted) != rank:
        raise c.unknown_shape()
    both = [max(a, b) if each != axis else 0 for each, (a, b) in enumerate(zip(shape, wanted, strict=True))]
    data = [shape[axis] if each == axis else size for each, size in enumerate(both)]
    index = [wanted[axis] if each == axis else size for each, size in enumerate(both)]
    names = emit_expand(c, name, data, "data"), emit_expand(c, indices_of(c, c.name("indices"), shape[axis]), index, "indices")
    return c.emit("GatherElements", list(names), axis=axis)


_REDUCED = "*, s? reduce=None"
OPERATORS: Mapping[str, ReadFunction] = {
    "aten::copy(T self, T src, b non_blocking=False)": read_copy,
    "aten::slice_scatter(T self, T src, i dim=0, i? start=None, i? end=None, i step=1)": read_slice_scatter,
    "aten::select_scatter(T self, T src, i dim, i index)": read_select_scatter,
    f"aten::scatter(T self, i dim, T index, T src, {_REDUCED})": read_scatter("src"),
    f"aten::scatter(T self, i dim, T index, f value, {_REDUCED})": read_scatter("value"),
    "aten::scatter_add(T self, i dim, T index, T src)": read_scatter("src", "add"),
    "aten::scatter_reduce(T self, i dim, T index, T src, s reduce, *, b include_self=True)": read_scatter("src"),
    "aten::index_fill(T self, i dim, T index, x value)": read_index_fill,
    "aten::index_copy(T self, i dim, T index, T source)": read_index_copy,
    "aten::index_add(T self, i dim, T index, T source, *, f alpha=1)": read_index_add,
    "aten::index_put|_unsafe_index_put(T self, t indices, T values, b accumulate=False)": read_index_put,
    "aten::take_along_dim(T self, T indices, i? dim=None)": read_take_along,
}
