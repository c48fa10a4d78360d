"""Reading and writing what lives from one run to the next (Graph.states)."""

from __future__ import annotations

from qconvert.operators.attributes import has, text
from qconvert.operators.kind import kind
from qconvert.operators.sizes import unknown_shapes

__all__ = ["KINDS"]


# The state has the shape; validation compares both.
KINDS = (
    kind("ReadState", "", "data", shape=unknown_shapes, rule="state", attributes=has(state=text())),
    kind("WriteState", "data", "", shape=unknown_shapes, rule="state", attributes=has(state=text())),
)
