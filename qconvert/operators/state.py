"""Reading and writing what lives from one run to the next (Graph.states)."""

from __future__ import annotations

from qconvert.graph.schema import Op
from qconvert.operators.attributes import has, text
from qconvert.operators.kind import kind
from qconvert.operators.sizes import Result as Shapes
from qconvert.operators.sizes import ShapeContext

__all__ = ["KINDS"]


def _read_shape(op: Op, s: ShapeContext) -> Shapes:
    """The state has it; validation compares both."""
    return [None]


def _write_shape(op: Op, s: ShapeContext) -> Shapes:
    return []


KINDS = (
    kind("ReadState", "", "data", shape=_read_shape, rule="state", attributes=has(state=text())),
    kind("WriteState", "data", "", shape=_write_shape, rule="state", attributes=has(state=text())),
)
