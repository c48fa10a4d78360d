"""What operators inside functions compute, where an operator that runs them is judged as a whole."""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op
from qconvert.graph.functions import functions_run
from qconvert.graph.kinds import is_dynamic

__all__ = ["on_real_data", "rounds_inside"]


def rounds_inside(graph: Graph, op: Op) -> bool:
    """Whether functions that an operator runs round real data to integers when they run."""
    return any(is_dynamic(inner) for name in functions_run(graph, [op]) for inner in graph.functions[name].ops)


def on_real_data(graph: Graph) -> Graph:
    """The graph whose functions compute on real data as they are."""
    functions = {
        name: replace(inner, ops=tuple(op.with_attributes(arithmetic="") if is_dynamic(op) else op for op in inner.ops))
        for name, inner in graph.functions.items()
    }
    return replace(graph, functions=functions)
