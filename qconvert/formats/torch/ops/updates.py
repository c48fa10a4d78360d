"""Tensors of which a part is replaced, as decompositions leave changes in place."""

from __future__ import annotations

from collections.abc import Sequence

from qconvert.formats.torch.promotion import typed
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.sizing import size_of, sizes_tensor
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]


def read_copy(c: Call) -> Ref:
    """aten::copy(self, src): the values of one tensor in the shape and type of another."""
    tensor = c.operand("self")
    source = typed(c, c["src"], tensor.dtype, "source")
    if c.lookup(source).shape == tensor.shape:
        return Ref(source)
    sizes = [size_of(c, tensor.name, axis) for axis in range(c.rank("self"))]
    return c.emit("Expand", [source, sizes_tensor(c, sizes, "shape")])


def _between(c: Call, name: str, axis: int, start: int, end: int, hint: str) -> str:
    bounds = [c.list64([value], f"{hint}/{word}") for value, word in ((start, "start"), (end, "end"), (axis, "axis"))]
    return c.emit("Slice", [name, *bounds], hint=hint).name


def _replaced(c: Call, source: str, axis: int, start: int, end: int) -> Ref:
    """A tensor with what lies between two positions of an axis replaced."""
    name, shape = c.name("self"), c.operand("self").shape
    size = None if shape is None else shape[axis]
    if not isinstance(size, int):
        raise c.unknown_shape("self")
    start, end = (min(max(value + size if value < 0 else value, 0), size) for value in (start, end))
    parts = [_between(c, name, axis, 0, start, "before")] if start > 0 else []
    parts += [source] if end > start else []
    parts += [_between(c, name, axis, max(start, end), size, "behind")] if max(start, end) < size else []
    return c.emit("Concat", parts, axis=axis) if len(parts) > 1 else Ref(parts[0]) if parts else Ref(name)


def read_slice_scatter(c: Call) -> Ref:
    """aten::slice_scatter(self, src, dim, start, end, step)."""
    if c.integer("step") != 1:
        raise c.unsupported(f"a step of {c.integer('step')}")
    axis = c.axis(c.integer("dim"), c.rank("self"))
    start, end = (default if c[name] is None else c.integer(name) for name, default in (("start", 0), ("end", 2**62)))
    return _replaced(c, typed(c, c["src"], c.operand("self").dtype, "source"), axis, start, end)


def read_select_scatter(c: Call) -> Ref:
    """aten::select_scatter(self, src, dim, index)."""
    axis, index = c.axis(c.integer("dim"), c.rank("self")), c.integer("index")
    source = typed(c, c["src"], c.operand("self").dtype, "source")
    wide = c.emit("Unsqueeze", [source, c.list64([axis], "axes")], hint="wide").name
    return _replaced(c, wide, axis, index, index + 1 if index != -1 else 2**62)


OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::copy": Operator("T self, T src, b non_blocking=False", read_copy),
    "aten::slice_scatter": Operator("T self, T src, i dim=0, i? start=None, i? end=None, i step=1", read_slice_scatter),
    "aten::select_scatter": Operator("T self, T src, i dim, i index", read_select_scatter),
}
