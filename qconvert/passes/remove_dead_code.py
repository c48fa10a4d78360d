"""remove_dead_code: operators whose outputs nobody needs disappear, and so do the tensors that only they used. Exact."""

from __future__ import annotations

from collections import Counter

from qconvert.graph import Graph, Op
from qconvert.graph.kinds import KINDS
from qconvert.plugins import Target

__all__ = ["needed_ops", "run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Keeps what the graph's outputs, and those of its signatures, depend on. Graph inputs stay, read or not."""
    kept = needed_ops(graph)
    changed = graph.evolve(ops=kept)
    ops, tensors = len(graph.ops) - len(kept), len(graph.tensors) - len(changed.tensors)
    if not ops and not tensors:
        return graph, ()
    gone = Counter(op.kind for op in graph.ops) - Counter(op.kind for op in kept)
    listed = f" ({', '.join(f'{count} {kind}' for kind, count in sorted(gone.items()))})" if gone else ""
    return changed, (f"{ops} operators{listed} and {tensors} tensors that no output needs are gone",)


def needed_ops(graph: Graph) -> list[Op]:
    """The operators that an output depends on, in order."""
    wanted = set(graph.public)
    kept = []
    for op in reversed(graph.ops):
        if wanted.intersection(filter(None, op.outputs)) or KINDS[op.kind].has_effect:
            wanted.update(op.inputs)
            kept.append(op)
    return kept[::-1]
