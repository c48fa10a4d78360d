"""Tensors of which a part is replaced, as decompositions leave changes in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.ops.slice_concat import END, emit_slice
from qconvert.formats.torch.promotion import cast_operand
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.sizing import size_of, sizes_tensor
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]


def read_copy(c: Call) -> Ref:
    """aten::copy(self, src): the values of one tensor in the shape and type of another."""
    tensor = c.operand("self")
    source = cast_operand(c, c["src"], tensor.dtype, "source")
    if c.lookup(source).shape == tensor.shape:
        return Ref(source)
    sizes = [size_of(c, tensor.name, axis) for axis in range(c.rank("self"))]
    return c.emit("Expand", [source, sizes_tensor(c, sizes, "shape")])


def _replace_slice(c: Call, source: str, axis: int, start: Any, end: Any) -> Ref:
    """A tensor with what lies between two positions of an axis replaced; positions below 0 count from the end, None is the end."""
    name, size = c.name("self"), (c.operand("self").shape or ())[axis]
    if isinstance(size, int) and isinstance(start, int) and (end is None or isinstance(end, int)):
        start, end = (min(max(value + size if value < 0 else value, 0), size) for value in (start, size if end is None else end))
        end = max(start, end)
        bounds = start > 0, end > start, end < size
    else:
        bounds = start != 0, True, end is not None
    parts = [emit_slice(c, name, axis, 0, start, hint="before").name] if bounds[0] else []
    parts += [source] if bounds[1] else []
    parts += [emit_slice(c, name, axis, end, END, hint="behind").name] if bounds[2] else []
    return c.emit("Concat", parts, axis=axis) if len(parts) > 1 else Ref(parts[0]) if parts else Ref(name)


def _replace_strided(c: Call, source: str, axis: int, start: int, end: int, step: int) -> Ref:
    """A tensor with each `step`th index of an axis replaced: both one after the other, and of each index the one or the other."""
    name, size = c.name("self"), c.operand("self").static_shape
    if size is None:
        raise c.unknown_shape("self")
    c.take(8 * size[axis])
    places = np.arange(size[axis])
    replaced = places[start:end:step]
    places[replaced] = size[axis] + np.arange(len(replaced))
    both = c.emit("Concat", [name, source], hint="both", axis=axis)
    return c.emit("Gather", [both.name, c.const(places, "places")], axis=axis)


def read_slice_scatter(c: Call) -> Ref:
    """aten::slice_scatter(self, src, dim, start, end, step)."""
    axis, step = c.axis(c.integer("dim"), c.rank("self")), c.integer("step")
    if step < 1:
        raise c.invalid(f"the step of the slice is {step}", rule="step-out-of-range")
    source = cast_operand(c, c["src"], c.operand("self").dtype, "source")
    if step > 1:
        start, end = (default if c[name] is None else c.integer(name) for name, default in (("start", 0), ("end", END)))
        return _replace_strided(c, source, axis, start, end, step)
    end = c["end"]
    return _replace_slice(c, source, axis, 0 if c["start"] is None else c["start"], None if isinstance(end, int) and end >= END else end)


def read_select_scatter(c: Call) -> Ref:
    """aten::select_scatter(self, src, dim, index)."""
    axis, index = c.axis(c.integer("dim"), c.rank("self")), c.integer("index")
    source = cast_operand(c, c["src"], c.operand("self").dtype, "source")
    wide = c.emit("Unsqueeze", [source, c.list64([axis], "axes")], hint="wide").name
    return _replace_slice(c, wide, axis, index, index + 1 if index != -1 else None)


OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::copy": Operator("T self, T src, b non_blocking=False", read_copy),
    "aten::slice_scatter": Operator("T self, T src, i dim=0, i? start=None, i? end=None, i step=1", read_slice_scatter),
    "aten::select_scatter": Operator("T self, T src, i dim, i index", read_select_scatter),
}
