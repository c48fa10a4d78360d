"""A graph cut at some of its tensors, so that what stands between two cuts can be run by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from qconvert.errors import InvalidModelError
from qconvert.graph.schema import Graph, Op
from qconvert.operators import kind_of

__all__ = ["Cut", "computable_ops", "cut"]

#: Suffix of the second name of a tensor at which the graph is cut: that of the value that the piece computes.
_COMPUTED = "/computed by the result"


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a graph between cuts.

    Attributes:
        graph: its inputs are what the part is fed with, its outputs what it computes, in the order of `computed`.
        computed: name in the whole graph -> name in the part, since a tensor may be both.
    """

    graph: Graph
    computed: Mapping[str, str]


def cut(graph: Graph, names: Collection[str], wanted: frozenset[str]) -> Cut:
    """The graph cut at the tensors called `names`, with the operators that compute those `wanted` among them.

    Raises:
        InvalidModelError: no operator is left.
    """
    ops = computable_ops(graph, names, wanted)
    written = {name for op in ops for name in op.outputs if name in names}
    read = {name for op in ops for name in op.inputs if name in names}
    computed = {name: name + _COMPUTED for name in graph.tensors if name in written}
    if not computed:
        raise InvalidModelError("source and result have no tensor names in common", where="check by operators", rule="no-common-tensors")
    part = graph.evolve(
        tensors=[replace(graph[name], name=new) for name, new in computed.items()],
        ops=[replace(op, outputs=tuple(computed.get(name, name) for name in op.outputs)) for op in ops],
        inputs=tuple(name for name in graph.tensors if name in read),
        outputs=tuple(computed.values()),
        signatures=(),
        metadata={},
        states={},
    )
    return Cut(part, computed)


def computable_ops(graph: Graph, cuts: Collection[str], wanted: frozenset[str] | None = None) -> list[Op]:
    """The operators that lead to the tensors called `cuts`, or to those `wanted` among them, and stem from such tensors and constants, in
    order. What is read of a state is known where the graph is cut at it: a piece has no runs before."""
    shared = frozenset(cuts)
    ends = shared if wanted is None else wanted
    known = {*shared, *(tensor.name for tensor in graph.constants())}
    stems: list[Op] = []
    for op in graph.ops:
        if kind_of(op).rule != "state" and all(not name or name in known for name in op.inputs):
            stems.append(op)
            known.update(op.outputs)
    needed: set[str] = set()
    found: list[Op] = []
    for op in reversed(stems):
        if any(name in ends or name in needed for name in op.outputs):
            found.append(op)
            needed.update(name for name in op.inputs if name not in shared)
    return found[::-1]
