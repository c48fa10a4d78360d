"""Moves of elements: reshapes, transpositions, slices, joins."""

from __future__ import annotations

from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]


def read_reshape(c: Call) -> Ref:
    """aten::reshape and aten::view."""
    return c.emit("Reshape", [c.name("self"), c.list64(c.integers("shape"), "shape")], allowzero=1)


OPERATORS = {
    **{f"aten::{name}": Operator("T self, l shape", read_reshape) for name in ("reshape", "view")},
}
