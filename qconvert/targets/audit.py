"""The audit: which operators the target's runtime will run as integer kernels, and which not and why.

It lists what Target.judge says of each operator. tests/targets/test_audit.py compares it with the graph that onnxruntime saves after
optimizing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qconvert.graph import Graph, Op
from qconvert.operators import KINDS
from qconvert.operators.functions import closed_graphs
from qconvert.plugins import Target, Verdict

__all__ = ["AuditLine", "audit", "audit_operators", "audited_counts", "count_operators", "runs_on"]


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One finding: `count` operators of `kind` run as integer kernels, or do not, for `reason`.

    Of a target with an `accelerator`, `integer` says whether that runs them; the CPU runs the others, on integers or in float.
    """

    kind: str
    count: int
    integer: bool
    reason: str
    accelerator: str = ""

    @property
    def runs_on(self) -> str:
        """In a word, what these run on."""
        return runs_on(self.integer, self.accelerator)

    @property
    def converts(self) -> bool:
        """Whether these only convert between float and stored integers, which no accelerator is asked to do."""
        return not self.accelerator and self.kind in KINDS and KINDS[self.kind].rule == "convert"


def runs_on(integer: bool, accelerator: str) -> str:
    """In a word, what an operator runs on: the accelerator or the CPU; integers or float where there is no accelerator."""
    words = (accelerator, "CPU") if accelerator else ("integers", "float")
    return words[0] if integer else words[1]


def audited_counts(lines: Iterable[AuditLine]) -> str:
    """How many operators run on integers; those that only convert between float and stored integers are no part of the total."""
    lines = tuple(lines)
    integers, total, conversions = count_operators(lines)
    if lines and lines[0].accelerator:
        return f"{integers} of {total} operators run on {lines[0].accelerator}, the others on the CPU"
    more = f"; {conversions} more only convert (Quantize, Dequantize, Requantize)" if conversions else ""
    return f"{integers} of {total} quantized operators run on integers{more}"


def count_operators(lines: Iterable[AuditLine]) -> tuple[int, int, int]:
    """How many operators run on integers, of how many, and how many more only convert."""
    listed = list(lines)
    conversions = sum(line.count for line in listed if line.converts and not line.integer)
    return sum(line.count for line in listed if line.integer), sum(line.count for line in listed) - conversions, conversions


def audit_operators(graph: Graph, target: Target) -> Iterator[tuple[Op, Verdict]]:
    """Every operator with a quantized input or output, or for an accelerator every operator, with the target's verdict on it.

    Operators of functions are included, but no Call.
    """
    for inner in closed_graphs(graph):
        for op, verdict in target.placements(inner):
            if op.kind != "Call" and (target.accelerator is not None or _is_quantized(inner, op)):
                yield op, verdict


def audit(graph: Graph, target: Target) -> tuple[AuditLine, ...]:
    """The findings for every operator that is audited, those that run as integers first, then by kind.

    Args:
        graph: normalized for the target.
        target: that judges.
    """
    found = Counter((op.kind, verdict.runs == "integers", verdict.rule) for op, verdict in audit_operators(graph, target))
    name = target.accelerator.name if target.accelerator is not None else ""
    lines = [AuditLine(kind, count, integer, reason, name) for (kind, integer, reason), count in found.items()]
    return tuple(sorted(lines, key=lambda line: (not line.integer, line.kind, line.reason)))


def _is_quantized(graph: Graph, op: Op) -> bool:
    return any(name and graph[name].is_quantized for name in (*op.inputs, *op.outputs))
