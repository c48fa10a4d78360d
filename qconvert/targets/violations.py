"""What a target does not take, as one error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qconvert.errors import UnsupportedError, format_count
from qconvert.operators.functions import closed_graphs
from qconvert.plugins import Target, Violation

if TYPE_CHECKING:
    from qconvert.graph import Graph

__all__ = ["refuse_violations", "violations"]

#: How many violations of each rule an error names; the rest are counted.
_NAMED = 3


def violations(graph: Graph, target: Target | None) -> tuple[Violation, ...]:
    """Everything in a normalized graph that its target refuses: of the graph, then what cannot be written, then of the file."""
    if target is None:
        return ()
    graphs = list(closed_graphs(graph))
    found = [v for inner in graphs for _, verdict in target.verdicts(inner) for v in verdict.violations]
    found += target.edge_rules(graph) if target.edge_rules is not None else ()
    return tuple(sorted(found, key=lambda violation: violation.order))


def refuse_violations(graph: Graph, target: Target | None) -> None:
    """Checks a normalized graph against its target.

    Args:
        graph: after the target's passes.
        target: None takes everything.

    Raises:
        UnsupportedError: the graph breaks rules of the target; all rules are listed, with counts, the first violations and what helps.
    """
    found = violations(graph, target)
    if target is None or not found:
        return
    groups: dict[str, list[Violation]] = {}
    for violation in found:
        groups.setdefault(violation.rule, []).append(violation)
    count = format_count(len(found), "place")
    lines = [f"the target {target.name} does not accept the model, in {count}:"]
    for rule, broken in groups.items():
        lines += _format_rule(rule, broken)
    remedies = dict.fromkeys(violation.remedy for violation in found if violation.remedy)
    raise UnsupportedError("\n".join(lines), remedy=f"What may help: {'; '.join(remedies)}." if remedies else "", rule="target-rules")


def _format_rule(rule: str, found: Sequence[Violation]) -> list[str]:
    places = [violation.where.replace("\n", "\\n") for violation in found[:_NAMED]]  # a line each, whatever their names hold
    lines = [f"- rule: {rule}. Broken by {len(found)}:", *(f"    {place}" for place in places)]
    return [*lines, f"    and {len(found) - _NAMED} more"] if len(found) > _NAMED else lines
