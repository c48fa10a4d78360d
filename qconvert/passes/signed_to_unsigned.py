"""signed_to_unsigned, unsigned_to_signed: quantized tensors of 4, 8 and 16 bits are stored as integers of the other sort. Exact.

Activations, weights, graph inputs and outputs alike: stored integers and zero points move by half the range. Biases (int32) stay. Where
an operator needs the integers themselves (one outside the operator set, an int64 bias), its tensors stay, after a Requantize.
"""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.graph import Graph
from qconvert.passes.stored_types import SIGNED, UNSIGNED, change_storage
from qconvert.plugins import PassResult, Target


def run(graph: Graph, target: Target | None) -> PassResult:
    """int4, int8 and int16 become uint4, uint8 and uint16. Who feeds the graph adds 8, 128 or 32768."""
    return _store_as(graph, UNSIGNED)


def store_signed(graph: Graph, target: Target | None) -> PassResult:
    """uint4, uint8 and uint16 become int4, int8 and int16. Who feeds the graph subtracts 8, 128 or 32768."""
    return _store_as(graph, SIGNED)


def _store_as(graph: Graph, dtypes: Mapping[str, str]) -> PassResult:
    """Store all quantized tensors in other types, old -> new."""
    moved = [tensor for tensor in graph.tensors.values() if tensor.is_quantized and tensor.dtype in dtypes]
    changed, count = change_storage(graph, moved, dtypes, keep_io=False)
    if all(tensor.name in changed.tensors and changed[tensor.name] == tensor for tensor in moved):
        return graph, ()
    types = ", ".join(f"{dtype} as {dtypes[dtype]}" for dtype in sorted({tensor.dtype for tensor in moved}))
    constants = sum(tensor.is_constant for tensor in moved)
    return changed, (
        f"{count} activations and {constants} constants are stored as another type ({types}); their dequantized values are unchanged",
    )
