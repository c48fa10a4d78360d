"""Functions of a graph: which of them operators name, and operators of all of them together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from qconvert.graph.schema import Graph, Op
from qconvert.operators import KINDS, kind_of

__all__ = [
    "all_graphs",
    "all_ops",
    "called_functions",
    "closed_graphs",
    "in_function",
    "named_functions",
    "rename_functions",
    "with_used_functions",
]


def named_functions(op: Op) -> list[str]:
    """The functions that an operator names."""
    attributes = kind_of(op).attributes if op.kind in KINDS else {}
    return [str(value) for name, value in op.attributes.items() if name in attributes and attributes[name].sort == "function"]


def rename_functions(op: Op, names: Mapping[str, str]) -> Op:
    """The operator with other names of its functions."""
    own = {
        name: names[str(op[name])] for name, spec in kind_of(op).attributes.items() if spec.sort == "function" and str(op[name]) in names
    }
    return replace(op, attributes={**op.attributes, **own}) if own else op


def all_graphs(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """The graph itself, under the name "", and its functions by their names."""
    yield "", graph
    yield from graph.functions.items()


def all_ops(graph: Graph) -> Iterator[Op]:
    """The operators of a graph and of its functions, each once."""
    for _, inner in all_graphs(graph):
        yield from inner.ops


def in_function(graph: Graph, name: str) -> Graph:
    """A function as a graph of its own, with the functions and states that its operators name."""
    return replace(graph.functions[name], functions=graph.functions, states=graph.states)


def closed_graphs(graph: Graph) -> Iterator[Graph]:
    """The graph itself and its functions, each with all functions and states, so that whatever its operators name is there."""
    yield graph
    yield from (in_function(graph, name) for name in graph.functions)


def called_functions(graph: Graph, ops: Iterable[Op]) -> set[str]:
    """The functions that operators name, and those that operators of these name."""
    used: set[str] = set()
    waiting = list(ops)
    while waiting:
        found = {name for name in named_functions(waiting.pop()) if name in graph.functions} - used
        waiting += [op for name in found for op in graph.functions[name].ops]
        used |= found
    return used


def with_used_functions(graph: Graph) -> Graph:
    """The graph without functions that nothing enters: no signature, no operator of it, and none of a function that is named."""
    entered = {signature.function for signature in graph.signatures if signature.function}
    used = entered | called_functions(graph, [*graph.ops, *(op for name in entered for op in graph.functions[name].ops)])
    if used >= graph.functions.keys():
        return graph
    functions: Mapping[str, Graph] = {name: inner for name, inner in graph.functions.items() if name in used}
    return replace(graph, functions=functions)
