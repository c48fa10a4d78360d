"""remove_dead_code: operators whose outputs nobody needs disappear, and so do the tensors that only they used. Exact."""

from __future__ import annotations

from qconvert.errors import format_count, format_counts
from qconvert.graph import Graph, count_kinds
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def remove_dead_code(graph: Graph, target: Target | None) -> PassResult:
    """Keep what the graph's outputs, and those of its signatures, depend on. Graph inputs stay, read or not."""
    changed = Rewriter(graph).finish(prune=True)
    ops, tensors = len(graph.ops) - len(changed.ops), len(graph.tensors) - len(changed.tensors)
    if not ops and not tensors:
        return graph, ()
    gone = count_kinds(graph) - count_kinds(changed)
    listed = f" ({format_counts(gone)})" if gone else ""
    return changed, (f"{format_count(ops, 'operator')}{listed} and {format_count(tensors, 'tensor')} that no output needs are removed",)
