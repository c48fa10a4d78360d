"""The audit: which operators the target's runtime will run as integer kernels, and which not and why.

It lists what Target.judge says of each operator. tests/targets/test_audit.py compares it with the graph that onnxruntime saves after
optimizing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from qconvert.graph import Graph, Op
from qconvert.plugins import Target

__all__ = ["AuditLine", "audit"]


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One finding: `count` operators of `kind` run as integer kernels, or do not, for `reason`."""

    kind: str
    count: int
    integer: bool
    reason: str


def audit(graph: Graph, target: Target) -> tuple[AuditLine, ...]:
    """The findings for every operator with a quantized side, those that run as integers first, then by kind.

    Args:
        graph: normalized for the target.
        target: that judges.
    """
    judged = ((op.kind, verdict) for op, verdict in target.verdicts(graph, final=False) if _is_quantized(graph, op))
    found = Counter((kind, verdict.runs == "integers", verdict.rule) for kind, verdict in judged)
    lines = [AuditLine(kind, count, integer, reason) for (kind, integer, reason), count in found.items()]
    return tuple(sorted(lines, key=lambda line: (not line.integer, line.kind, line.reason)))


def _is_quantized(graph: Graph, op: Op) -> bool:
    return any(name and graph[name].is_quantized for name in (*op.inputs, *op.outputs))
