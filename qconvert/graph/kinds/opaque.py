"""Opaque: an operator outside this set, carried unchanged from one file of a format to another of the same format."""

from __future__ import annotations

from qconvert.graph.kinds.attributes import has, integer, text, texts
from qconvert.graph.kinds.kind import kind
from qconvert.graph.schema import Op
from qconvert.graph.sizes import Result as Shapes
from qconvert.graph.sizes import ShapeContext

__all__ = ["KINDS"]


def _opaque_shape(op: Op, s: ShapeContext) -> Shapes:
    return [None] * len(op.outputs)


KINDS = (
    kind(
        "Opaque",
        "data...?",
        "data...?",
        shape=_opaque_shape,
        rule="opaque",
        attributes=has(format=text(), domain=text(), op_type=text(), version=integer(), payload=text(""), captures=texts(())),
    ),
)
