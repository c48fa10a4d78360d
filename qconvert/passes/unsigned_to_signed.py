"""unsigned_to_signed: unsigned quantized tensors of 4, 8 and 16 bits are stored as signed integers. Exact.

The reverse of signed_to_unsigned; see there for the tensors that change.
"""

from __future__ import annotations

from qconvert.graph import Graph
from qconvert.passes.signed_to_unsigned import store_as
from qconvert.passes.stored_types import SIGNED
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """uint4, uint8 and uint16 become int4, int8 and int16. Who feeds the graph subtracts 8, 128 or 32768."""
    return store_as(graph, SIGNED)
