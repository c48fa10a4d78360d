"""Which operators of the source were judged, by themselves or together with others, and which were not."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from qconvert.checking.findings import NOT_COMPARED, Finding
from qconvert.graph import Graph
from qconvert.operators import kind_of

__all__ = ["find_judged_together", "make_left_out_findings"]


def find_judged_together(graph: Graph, compared: Collection[str], cuts: Collection[str]) -> set[int]:
    """Positions of the operators without a finding of their own that are part of what others were compared for.

    Where neither side is cut at a tensor, the result computes it again for whatever reads it, so the comparison of that judges both.

    Args:
        graph: the source's.
        compared: names of the tensors that were compared.
        cuts: names of those at which both sides are cut.
    """
    needed: set[str] = set()
    found: set[int] = set()
    for position, op in reversed(list(enumerate(graph.ops))):
        by_itself = any(name in compared for name in op.outputs)
        if by_itself or any(name in needed for name in op.outputs):
            needed.update(name for name in op.inputs if name not in cuts)
            if not by_itself:
                found.add(position)
    return found


def make_left_out_findings(
    graph: Graph, compared: Collection[str], within: Collection[int], refused: Mapping[str, str]
) -> dict[str, Finding]:
    """A finding for each operator that was not judged, by its first output.

    Operators that lead to no output or state of the graph do not count, nor do reads of a state: their values are fed to their readers.

    Args:
        graph: the source's.
        compared: names of the tensors that were compared.
        within: see find_judged_together().
        refused: why a runtime refused what computes a tensor.
    """
    useful = set(graph.outputs)
    found: dict[str, Finding] = {}
    for position, op in reversed(list(enumerate(graph.ops))):
        if kind_of(op).rule == "state":
            useful.update(op.inputs)
            continue
        if not any(name in useful for name in op.outputs):
            continue
        useful.update(op.inputs)
        if position in within or any(name in compared for name in op.outputs):
            continue
        reason = next((refused[name] for name in op.outputs if name in refused), "no output has the same name in both files")
        name = next(name for name in op.outputs if name)
        found[name] = Finding(NOT_COMPARED, reason, 0.0, 0.0, 0.0, 0, op.source or op.kind, name)
    return dict(reversed(found.items()))
