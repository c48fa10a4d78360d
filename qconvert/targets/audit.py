"""The audit: which operators the target's runtime will run as integer kernels, and which not and why.

It is worked out from the graph and the target's table alone. tests/test_audit.py compares it with the graph that onnxruntime saves
after optimizing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from qconvert.graph import Graph, Op
from qconvert.graph.kinds import KINDS
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
        target: whose table of integer kernels is used.
    """
    found = Counter((op.kind, *_verdict(graph, op, target)) for op in graph.ops if _is_quantized(graph, op))
    lines = [AuditLine(kind, count, integer, reason) for (kind, integer, reason), count in found.items()]
    return tuple(sorted(lines, key=lambda line: (not line.integer, line.kind, line.reason)))


def _is_quantized(graph: Graph, op: Op) -> bool:
    return any(name and graph[name].is_quantized for name in (*op.inputs, *op.outputs))


def _verdict(graph: Graph, op: Op, target: Target) -> tuple[bool, str]:
    """Whether the operator runs on integers, and why."""
    rule = KINDS[op.kind].rule
    if rule in ("move", "relabel"):
        return True, "moves stored integers"
    if rule == "convert":
        return False, "converts between real and stored values"
    data = graph[op.inputs[0]]
    equal = all(graph[name].quantization == graph[op.outputs[0]].quantization for name in op.inputs if name)
    if op.kind in ("Relu", "Clip") and data.is_quantized and data.quantization == graph[op.outputs[0]].quantization:
        return True, "clips stored integers"
    if op.kind == "Concat" and equal:
        return True, "moves stored integers"
    if op.kind in ("ArgMax", "ArgMin") and data.is_quantized:
        return True, "compares stored integers"
    real = [name for name in (*op.inputs, *op.outputs) if name and not graph[name].is_quantized and graph[name].dtype == "float32"]
    if real:
        return False, "part of its data is float"
    if op.attributes.get("fixed_point"):
        return False, f"spelled out in float64 to be equal to {op['fixed_point']}'s integer arithmetic"
    dtypes = target.integer_kernels.get(op.kind)
    if dtypes is None:
        return False, f"{target.name} has no integer kernel for {op.kind}: it runs in float between Dequantize and Quantize"
    if data.dtype not in dtypes:
        return (
            False,
            f"{target.name} has no integer kernel for {data.dtype} data: it runs in float between Dequantize and Quantize",
        )
    if op.kind == "MatMul" and graph[op.outputs[0]].quantization is None:
        return False, "its result is float"
    return True, "integer kernel"
