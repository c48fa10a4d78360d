"""What a target says of a graph: the audit, which operators its runtime will run as integer kernels and which not and why; and what it
does not take, as one error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from qconvert.errors import UnsupportedError, format_count
from qconvert.graph import Graph, Op
from qconvert.operators import KINDS, kind_of
from qconvert.operators.shapes_and_functions import closed_graphs, is_quantized
from qconvert.plugins import Target, Verdict, Violation


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
        kind = KINDS.get(self.kind)
        return not self.accelerator and kind is not None and kind.rule == "convert"

    def __str__(self) -> str:
        return f"{self.count} {self.kind}: {self.reason}"


def runs_on(integer: bool, accelerator: str) -> str:
    """In a word, what an operator runs on: the accelerator or the CPU; integers or float where there is no accelerator."""
    words = (accelerator, "CPU") if accelerator else ("integers", "float")
    return words[0] if integer else words[1]


#: What an audit says of a float model.
NOT_QUANTIZED = "no operator is quantized; `qconvert calibrate` quantizes a float model"


def audited_counts(lines: Iterable[AuditLine]) -> str:
    """How many operators run on integers; those that only convert between float and stored integers are no part of the total."""
    lines = tuple(lines)
    if not lines:
        return NOT_QUANTIZED
    conversions = sum(line.count for line in lines if line.converts and not line.integer)
    integers, total = sum(line.count for line in lines if line.integer), sum(line.count for line in lines) - conversions
    if lines[0].accelerator:
        return f"{integers} of {total} operators run on {lines[0].accelerator}" + (", the others on the CPU" if integers < total else "")
    more = f"; {conversions} more only convert (Quantize, Dequantize, Requantize)" if conversions else ""
    return f"{integers} of {total} operators run on integers{more}"


def audit_operators(graph: Graph, target: Target, *, with_floats: bool = False) -> Iterator[tuple[Op, Verdict]]:
    """Every operator with a quantized input or output, or for an accelerator every operator, with the target's verdict on it.

    Operators of functions are included, but no Call.

    Args:
        graph, target: whose operators are judged.
        with_floats: whether operators that compute in float without a quantized side count too, if anything in the graph is quantized.
    """
    with_floats = with_floats and is_quantized(graph)
    for inner in closed_graphs(graph):
        for op, verdict in target.placements(inner):
            counts = _is_quantized(inner, op) or (with_floats and computes_in_float(inner, op, verdict))
            if op.kind != "Call" and (target.accelerator is not None or counts):
                yield op, verdict


def computes_in_float(graph: Graph, op: Op, verdict: Verdict | None) -> bool:
    """Whether an operator computes float values.

    Args:
        graph, op: the operator.
        verdict: the target's, where its kernels are known; without it an operator does whose results have no scale.
    """
    if kind_of(op).rule in ("move", "relabel", "state", "control", "convert"):
        return False
    if verdict is not None and _is_quantized(graph, op):
        return verdict.runs == "floats"
    return any("float" in graph[name].dtype and not graph[name].is_quantized for name in op.outputs if name)


def audit(graph: Graph, target: Target) -> tuple[AuditLine, ...]:
    """The findings for every operator that is audited, those that run as integers first, then by kind.

    Args:
        graph: normalized for the target.
        target: that judges.
    """
    found = Counter((op.kind, verdict.runs == "integers", verdict.rule) for op, verdict in audit_operators(graph, target, with_floats=True))
    name = target.accelerator.name if target.accelerator is not None else ""
    lines = [AuditLine(kind, count, integer, reason, name) for (kind, integer, reason), count in found.items()]
    return tuple(sorted(lines, key=lambda line: (not line.integer, line.kind, line.reason)))


def _is_quantized(graph: Graph, op: Op) -> bool:
    return any(graph.is_quantized(name) for name in op.names)


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
