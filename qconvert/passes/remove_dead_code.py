"""remove_dead_code: operators whose outputs nobody needs disappear, and so do the tensors that only they used. Exact."""

from __future__ import annotations

from collections import Counter

from qconvert.graph import Graph
from qconvert.plugins import Target
from qconvert.rewriting import Rewriter

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Keep what the graph's outputs, and those of its signatures, depend on. Graph inputs stay, read or not."""
    changed = Rewriter(graph).finish(prune=True)
    ops, tensors = len(graph.ops) - len(changed.ops), len(graph.tensors) - len(changed.tensors)
    if not ops and not tensors:
        return graph, ()
    gone = Counter(op.kind for op in graph.ops) - Counter(op.kind for op in changed.ops)
    listed = f" ({', '.join(f'{count} {kind}' for kind, count in sorted(gone.items()))})" if gone else ""
    return changed, (f"{ops} operators{listed} and {tensors} tensors that no output needs are removed",)
