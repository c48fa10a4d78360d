"""The invariants of a canonical graph: validate() says which one is broken, and where, in one sentence."""

from __future__ import annotations

from dataclasses import replace

from qconvert.errors import InvalidGraphError
from qconvert.graph import Graph
from qconvert.operators.shapes_and_functions import merge_shapes, output_shapes
from qconvert.operators.sizes import is_compatible
from qconvert.rules.validation.quantization import quantization
from qconvert.rules.validation.structure import Problems, names, operators, order, scopes, tensors

__all__ = ["validate"]

#: In this order: each check may rely on what the ones before it have established.
_CHECKS = (names, operators, order, tensors, quantization)


def validate(graph: Graph) -> None:
    """Checks every invariant of a graph.

    Raises:
        InvalidGraphError: the first one that is broken; `where` names the operator or the tensor.
    """
    for where, rule, reason in _problems(graph):
        raise InvalidGraphError(reason, where=where, rule=rule)


def _problems(graph: Graph) -> Problems:
    yield from _own_problems(graph)
    if not graph.outputs:
        yield f"graph {graph.name!r}", "no-outputs", "has no outputs"
    for name, inner in graph.functions.items():
        yield from ((f"function {name!r}, {where}", rule, reason) for where, rule, reason in _own_problems(inner))
    yield from scopes(graph)


def _own_problems(graph: Graph) -> Problems:
    """What is wrong with the operators and tensors of one graph, without its functions."""
    for check in _CHECKS:
        yield from check(graph)
    yield from _shapes(graph)


def _shapes(graph: Graph) -> Problems:
    """Stored shapes are those that the operators give, as far as both are known."""
    known = dict(graph.tensors)
    for op in graph.ops:
        for name, shape in zip(op.outputs, output_shapes(known, op), strict=True):
            if not name:
                continue
            stored = known[name]
            if not is_compatible(stored.shape, shape):
                yield op.location, "shape-mismatch", f"gives {name!r} the shape {shape}, but the graph states {stored.shape}"
            elif stored.static_shape is None:
                known[name] = replace(stored, shape=merge_shapes(name, shape, stored.shape))
