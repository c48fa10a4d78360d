"""Filling a builder with a graph's inputs, operators and outputs, in their order: shared by all forms of PyTorch's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.formats.torch.writers.sums import computes_on_quantizations
from qconvert.formats.torch.writing import Builder
from qconvert.graph import Graph
from qconvert.operators.opaque import custom_name
from qconvert.rewriting.lowering import Lowered, legality, lower, require_legal

__all__ = ["fill", "lower_graph"]

_REMEDY = "Write these operators in a plugin (hook qconvert_operators, format torch), or convert to ONNX, which carries custom operators."


def lower_graph(graph: Graph, known: Mapping[str, Callable[..., Any]], *, is_exact: bool) -> Lowered:
    """Return the graph with operators that PyTorch lacks decomposed by formulas.

    Args:
        graph: the graph.
        known: functions for the kinds.
        is_exact: whether float values between integers are float64.
    """
    real = (
        (lambda graph, op: "float64" if computes_on_quantizations(graph, op) else "float32") if is_exact else (lambda graph, op: "float32")
    )
    return lower(graph, legality(known), real=real)


def fill(builder: Builder, known: Mapping[str, Callable[..., Any]]) -> None:
    """Writes a graph's inputs, operators and outputs into its builder, by functions for the kinds.

    Raises:
        UnsupportedError: operators that have no form in PyTorch; kinds are all listed.
    """
    graph = builder.graph
    missing = Counter(custom_name(op) if op.kind == "Opaque" else op.kind for op in graph.ops if op.kind not in known)
    if missing:
        listed = ", ".join(f"{kind} ({count})" for kind, count in sorted(missing.items()))
        raise UnsupportedError(f"PyTorch has no operators for: {listed}", remedy=_REMEDY, rule="operators-not-writable")
    require_legal(graph, legality(known), "PyTorch")
    for name in graph.inputs:
        builder.take_input(name)
    for op in graph.ops:
        builder.op, builder.wide = op, builder.is_exact and computes_on_quantizations(graph, op)
        known[op.kind](op, builder)
    builder.op, builder.wide = None, False
    builder.finish_program()
