"""Sizes of tensors as numbers: known ones are numbers at once, others are computed by the graph as int64 of rank 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.sizing import scalar, size_of, sizes_tensor
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]


def read_size(c: Call) -> Any:
    """aten::size(x, dim) and aten::sym_size."""
    return size_of(c, c.name("self"), c.axis(c.integer("dim"), c.rank("self")))


def read_sizes(c: Call) -> list[Any]:
    """aten::size(x): all of them."""
    return [size_of(c, c.name("self"), axis) for axis in range(c.rank("self"))]


def read_count(c: Call) -> Any:
    """aten::numel(x)."""
    name = c.name("self")
    sizes = [size_of(c, name, axis) for axis in range(c.rank("self"))]
    if all(isinstance(size, int) for size in sizes):
        return math.prod(sizes)
    return Ref(c.emit("ReduceProd", [sizes_tensor(c, sizes, "sizes"), c.list64([0], "axes")], keepdims=0).name, number=True)


def read_rank(c: Call) -> int:
    """aten::dim(x)."""
    return c.rank("self")


def read_length(c: Call) -> Any:
    """aten::len(x): its first size."""
    return size_of(c, c.name("self"), 0)


def read_number_tensor(c: Call) -> Ref:
    """prim::NumToTensor(n): a number as a tensor of rank 0."""
    value = c["a"]
    if isinstance(value, Ref):
        return Ref(value.name)
    return Ref(c.const(np.array(value, np.int64 if isinstance(value, int) else np.float32), "number"))


def read_whole_number(c: Call) -> Any:
    """aten::Int(x), aten::item(x), int(x): the one element of a tensor as a number."""
    value = c["a"]
    if not isinstance(value, Ref):
        return int(value)
    known = c.known(value.name)
    if known is not None and known.size == 1:
        item = known.reshape(-1)[0]
        return int(item) if known.dtype.kind in "iub" else float(item)
    tensor = c.lookup(value.name)
    if tensor.dtype != "int64":
        return Ref(c.emit("Cast", [value.name], dtype="int64", grid=None, to="int64").name, number=True)
    return Ref(value.name, number=True)


def read_arithmetic(kind: str) -> Operator:
    """A sum, difference, product or quotient of numbers of which one is known only at run time."""

    def read(c: Call) -> Ref:
        names = [scalar(c, c["a"], "a"), scalar(c, c["b"], "b")]
        return Ref(c.emit(kind, names, dtype="int64", grid=None).name, number=True)

    return Operator("i a, i b", read)


_NUMBERS = {"add": "Add", "sub": "Sub", "mul": "Mul", "floordiv": "FloorDiv", "mod": "FloorMod", "sym_max": "Max", "sym_min": "Min"}

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::size": [Operator("T self, i dim", read_size), Operator("T self", read_sizes)],
    "aten::sym_size": [Operator("T self, i dim", read_size), Operator("T self", read_sizes)],
    "aten::numel": Operator("T self", read_count),
    "aten::dim": Operator("T self", read_rank),
    "aten::len": Operator("T self", read_length),
    "prim::NumToTensor": Operator("f a", read_number_tensor),
    **{name: Operator("T a", read_whole_number) for name in ("aten::Int", "prim::int", "aten::IntImplicit")},
    "aten::item": Operator("T a", read_whole_number),
    **{f"prim::{name}": read_arithmetic(kind) for name, kind in _NUMBERS.items()},
    "aten::floordiv": read_arithmetic("FloorDiv"),
}
