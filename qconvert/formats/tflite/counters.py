"""Numbers of turns: what bodies of loops carry and count up, and which therefore never is below zero."""

from __future__ import annotations

from qconvert.graph import Graph, Op
from qconvert.operators.functions import all_graphs

__all__ = ["find_counters"]


def find_counters(graph: Graph) -> dict[str, frozenset[str]]:
    """Body of a While -> those of its inputs that begin at 0 or above and grow at each turn, wherever it is run."""
    found: dict[str, frozenset[str]] = {}
    for _, inner in all_graphs(graph):
        for op in inner.ops:
            if op.kind == "While":
                name = str(op["body"])
                own = _loop_counters(inner, op, graph.functions[name])
                found[name] = found.get(name, own) & own
    return found


def _loop_counters(graph: Graph, op: Op, body: Graph) -> frozenset[str]:
    makers = body.producers()
    found = set()
    for given, inside, after in zip(op.inputs, body.inputs, body.outputs, strict=True):
        first, maker = graph.constant(given), makers.get(after)
        if first is None or first.dtype.kind != "i" or not (first >= 0).all() or maker is None or maker.kind != "Add":
            continue
        steps = [body.constant(name) for name in maker.inputs if name != inside]
        if inside in maker.inputs and len(steps) == 1 and steps[0] is not None and (steps[0] >= 0).all():
            found.add(inside)
    return frozenset(found)
