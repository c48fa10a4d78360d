"""Moves of elements without a change of their order: reshapes and axes of one element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.formats.torch.reading import Call, Operator, ReadFunction
from qconvert.formats.torch.sizing import emit_reshape, size_of, sizes_tensor
from qconvert.formats.torch.values import Ref, Uncomputed

__all__ = ["OPERATORS"]


def read_identity(c: Call) -> Ref:
    """Operators that return their input: contiguous, clone, detach, dropout of a model that is not trained."""
    return Ref(c.name("self"))


def read_dropout(c: Call, data: str = "input") -> Ref:
    """Dropout: the identity in inference; training is not covered."""
    if c["train"] and c.number("p"):
        raise c.unsupported_error("training mode; call model.eval() before the export,", rule="training-mode")
    return Ref(c.name(data))


def read_dropout_in_place(c: Call) -> Ref:
    """aten::dropout_, whose data have another name."""
    return read_dropout(c, "self")


def read_reshape(argument: str) -> Operator:
    """aten::reshape and aten::view: at most one size may be -1, what is left."""

    def read(c: Call) -> Ref:
        return emit_reshape(c, c.name("self"), c[argument])

    return Operator(f"T self, l {argument}", read)


def read_flatten(c: Call) -> Ref:
    """aten::flatten(x, start_dim, end_dim): these axes as one."""
    rank = c.rank("self")
    if rank == 0:
        return emit_reshape(c, c.name("self"), [1])
    first, last = (c.axis(c.integer(name), rank) for name in ("start_dim", "end_dim"))
    name = c.name("self")
    sizes = [size_of(c, name, axis) for axis in range(rank) if axis < first or axis > last]
    return emit_reshape(c, name, [*sizes[:first], -1, *sizes[first:]])


def read_unflatten(c: Call) -> Ref:
    """aten::unflatten(x, dim, sizes): one axis as several."""
    rank, name = c.rank("self"), c.name("self")
    axis = c.axis(c.integer("dim"), rank)
    sizes = [size_of(c, name, index) for index in range(rank)]
    return emit_reshape(c, name, [*sizes[:axis], *c["sizes"], *sizes[axis + 1 :]])


def read_view_as(c: Call) -> Ref:
    """aten::view_as and aten::reshape_as."""
    other = c.name("other")
    return emit_reshape(c, c.name("self"), [size_of(c, other, axis) for axis in range(c.rank("other"))])


def read_unsqueeze(c: Call) -> Ref:
    """aten::unsqueeze(x, dim)."""
    axis = c.axis(c.integer("dim"), c.rank("self") + 1)
    return c.emit("Unsqueeze", [c.name("self"), c.list64([axis], "axes")])


def read_squeeze(c: Call) -> Ref:
    """aten::squeeze(x, dims): those of the axes that have one element."""
    shape, rank = c.operand("self").shape, c.rank("self")
    wanted = range(rank) if "dim" not in c or c["dim"] is None else [c.axis(axis, rank) for axis in c.integers("dim")]
    if shape is None or any(isinstance(shape[axis], str) for axis in wanted):
        raise c.unknown_shape("self")
    axes = [axis for axis in wanted if shape[axis] == 1]
    return c.emit("Squeeze", [c.name("self"), c.list64(axes, "axes")]) if axes else Ref(c.name("self"))


def read_permute(c: Call) -> Ref:
    """aten::permute(x, dims)."""
    rank = c.rank("self")
    axes = tuple(c.axis(axis, rank) for axis in c.integers("dims"))
    if sorted(axes) != list(range(rank)):
        raise c.invalid(f"{axes} is not a permutation of {rank} axes", rule="not-a-permutation")
    return c.emit("Transpose", [c.name("self")], perm=axes)


def read_transpose(c: Call) -> Ref:
    """aten::transpose(x, dim0, dim1): two axes change places."""
    rank = c.rank("self")
    order: list[int] = list(range(rank))
    first, second = (c.axis(c.integer(name), rank) for name in (("dim0", "dim1") if "dim0" in c else ("axis0", "axis1")))
    order[first], order[second] = second, first
    return c.emit("Transpose", [c.name("self")], perm=tuple(order)) if first != second else Ref(c.name("self"))


def read_reversed_axes(c: Call) -> Ref:
    """aten::t(x) and x.T: the axes in reverse order."""
    rank = c.rank("self")
    return c.emit("Transpose", [c.name("self")], perm=tuple(range(rank))[::-1]) if rank > 1 else Ref(c.name("self"))


def read_expand(c: Call) -> Ref:
    """aten::expand(x, size): axes of one element repeated; -1 keeps a size."""
    name, rank, sizes = c.name("self"), c.rank("self"), c["size"]
    before = len(sizes) - rank
    kept: list[Any] = [size_of(c, name, axis - before) if size == -1 and axis >= before else size for axis, size in enumerate(sizes)]
    return c.emit("Expand", [name, sizes_tensor(c, kept, "shape")])


def read_expand_as(c: Call) -> Ref:
    """aten::expand_as(x, other): to the other's shape."""
    other = c.name("other")
    return c.emit("Expand", [c.name("self"), sizes_tensor(c, [size_of(c, other, axis) for axis in range(c.rank("other"))], "shape")])


def read_repeat(argument: str) -> ReadFunction:
    """aten::repeat(x, repeats), tile(x, dims): the whole along each of the last axes; further axes come first."""

    def read(c: Call) -> Ref:
        name, rank, repeats = c.name("self"), c.rank("self"), list(c[argument])
        repeats = [1] * (rank - len(repeats)) + repeats
        missing = len(repeats) - rank
        if missing > 0:
            sizes = [size_of(c, name, axis) for axis in range(rank)]
            name = emit_reshape(c, name, [1] * missing + sizes, hint="wider").name
        return c.emit("Tile", [name, sizes_tensor(c, repeats, "repeats")])

    return read


_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
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
