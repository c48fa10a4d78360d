"""What a target does not take, as one error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qconvert.errors import UnsupportedError
from qconvert.plugins import Target, Violation

if TYPE_CHECKING:
    from qconvert.graph import Graph

__all__ = ["refuse_violations"]

#: How many violations of each rule an error names; the rest are counted.
_NAMED = 3


def refuse_violations(graph: Graph, target: Target | None) -> None:
    """Checks a normalized graph against its target.

    Args:
        graph: after the target's passes.
        target: None takes everything.

    Raises:
        UnsupportedError: the graph breaks rules of the target; all rules are listed, with counts, the first violations and what helps.
    """
    violations = tuple(target.check(graph)) if target is not None and target.check is not None else ()
    if target is None or not violations:
        return
    groups: dict[str, list[Violation]] = {}
    for violation in violations:
        groups.setdefault(violation.rule, []).append(violation)
    count = f"{len(violations)} place{'s' if len(violations) > 1 else ''}"
    lines = [f"the target {target.name} does not take the model as it is, in {count}:"]
    for rule, found in groups.items():
        lines += _listed(rule, found)
    remedies = dict.fromkeys(violation.remedy for violation in violations if violation.remedy)
    raise UnsupportedError("\n".join(lines), remedy=f"What may help: {'; '.join(remedies)}." if remedies else "")


def _listed(rule: str, found: Sequence[Violation]) -> list[str]:
    lines = [f"- the rule: {rule}. Broken by {len(found)}:", *(f"    {violation.where}" for violation in found[:_NAMED])]
    return [*lines, f"    and {len(found) - _NAMED} more"] if len(found) > _NAMED else lines
