"""An operator's two results judged, and what is named beside: changed constants, and operators without a finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.checking.classify import classify
from qconvert.checking.findings import Finding
from qconvert.errors import UnsupportedError
from qconvert.graph import Array, Graph, Op
from qconvert.graph.kinds import KINDS

__all__ = ["judge", "name_changed", "unmatched"]

#: Differences that an operator without an exact evaluation may have: steps of 8- and 16-bit integers, a share of the largest float.
_LARGEST_STEPS, _LARGEST_SHARE = 1, 1e-5
_STORED = ("int8", "uint8", "int16", "uint16")


def judge(
    graph: Graph,
    op: Op,
    index: int,
    values: Mapping[str, Array],
    pair: tuple[Array, Array],
    kernels: tuple[str, str],
    further: float = 0.0,
) -> Finding:
    """The finding for output `index` of an operator. What is equal needs no exact evaluation.

    Args:
        graph: the source's canonical graph.
        op: the operator.
        index: of the output.
        values: the stored values of the source's tensors, by name.
        pair: what the source and the result compute from them, both as the source stores it.
        kernels: of the source and the result; see classify.classify().
        further: see classify.classify().
    """
    a, b = pair
    if a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        moves = KINDS[op.kind].rule in ("move", "relabel") and a.dtype.kind in "iu"
        return Finding("equal", "integers are moved" if moves else "", 1.0, 0.0, 0.0, 0)
    if a.shape == b.shape and not _is_known(graph, op, values):
        return _compared(a, b)
    rounds = KINDS[op.kind].rule in ("real", "convert")
    real = _exact(graph, op, values, index) if rounds and _is_rounded(graph, op) else None
    if real is None and rounds and a.shape == b.shape:
        return _compared(a, b)
    return classify(graph, replace(op, outputs=op.outputs[index:]), a, b, real, kernels, further)


def _is_rounded(graph: Graph, op: Op) -> bool:
    """Whether the operator ends on a grid; concatenating integers of one quantization does not round."""
    result = graph[op.outputs[0]]
    if op.kind == "Concat" and all(graph[name].quantization == result.quantization for name in op.inputs):
        return False
    return result.is_quantized


def _is_known(graph: Graph, op: Op, values: Mapping[str, Array]) -> bool:
    """Whether what the operator computes, and all that it reads, is known: else its island holds other operators too."""
    return op.kind != "Opaque" and all(graph[name].is_constant or name in values for name in op.inputs if name)


def _exact(graph: Graph, op: Op, values: Mapping[str, Array], index: int) -> Array | None:
    from qconvert.evaluate import evaluate_op

    inputs = [None if not name else graph.constant(name) if graph[name].is_constant else values[name] for name in op.inputs]
    try:
        return evaluate_op(graph, op, inputs)[index].real
    except UnsupportedError:
        return None


def _compared(a: Array, b: Array) -> Finding:
    """Two outputs that differ, of an operator without an exact evaluation."""
    differing = a != b
    equal = 1.0 - float(differing.mean())
    if a.dtype.kind not in "biuf":
        return Finding("unexplained", "values differ", equal, float("inf"), 0.0, int(differing.sum()))
    difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
    if a.dtype.kind == "f":
        scale, allowed, reason = float(np.abs(a[np.isfinite(a)]).max(initial=0)) or 1.0, _LARGEST_SHARE, "float arithmetic"
        difference = np.where(np.isnan(difference), np.where(differing & ~(np.isnan(a) & np.isnan(b)), np.inf, 0.0), difference) / scale
    else:
        allowed, reason = (_LARGEST_STEPS if a.dtype.name in _STORED else 0), "compared without an exact value"
    wrong = int((difference > allowed).sum())
    largest = float(difference.max(initial=0))
    verdict = "unexplained" if wrong else "approximate"
    return Finding(verdict, "values differ" if wrong else reason, equal, largest, 1.0, wrong)


def name_changed(graph: Graph, changed: dict[str, str], findings: dict[str, Finding]) -> None:
    """Operators that read a constant or write a tensor whose integers, scale or zero point are not the source's."""
    for op in graph.ops:
        reasons = [changed[name] for name in op.inputs if name in changed and graph[name].is_constant]
        for name in op.outputs:
            own = [*reasons, *([changed[name]] if name in changed else [])]
            if own and name in findings:
                findings[name] = replace(findings[name], verdict="unexplained", reason=", ".join(own))


def unmatched(graph: Graph, findings: Mapping[str, Finding]) -> str:
    """One line on the operators without a finding; "" if there are none."""
    left = Counter(op.kind for op in graph.ops if not any(name in findings for name in op.outputs))
    if not left:
        return ""
    listed = ", ".join(f"{kind} ({count})" for kind, count in left.most_common())
    several = sum(left.values()) != 1
    return (
        f"{sum(left.values())} of {len(graph.ops)} operators {'are' if several else 'is'} not compared by "
        f"{'themselves' if several else 'itself'}, since no output has the same name in both files: {listed}"
    )
