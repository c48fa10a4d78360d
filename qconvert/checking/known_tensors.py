"""The values of a side's tensors in a run: from the untouched file in its runtime, and from the evaluator what that does not know."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph

__all__ = ["completed"]


def completed(graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """`values` with every tensor that the evaluator can work out from them, such as those that the reader added; the rest are absent.

    Args:
        graph: the canonical graph.
        values: stored values of activations by name, the graph's inputs at least.
    """
    found = dict(values)
    for op in graph.ops:
        if all(not name or name in found for name in op.outputs):
            continue
        inputs = [None if not name else graph.constant(name) if graph[name].is_constant else found.get(name) for name in op.inputs]
        if op.kind == "Opaque" or any(name and value is None for name, value in zip(op.inputs, inputs, strict=True)):
            continue
        try:
            results = evaluate_op(graph, op, inputs)
        except QConvertError:
            continue
        found.update((name, result.stored) for name, result in zip(op.outputs, results, strict=False) if name and name not in found)
    return found
