"""lower_missing: operators that the target's runtime lacks become others that it has, by the formulas of operators/formulas/.

The writer of a format puts a formula in the place of what the format lacks; here it is the runtime that has no kernel, as the target's
rules say of the file that would be written (tflite-micro has no TILE, LiteRT has one). Each operator of a formula is held against the same
rules, alone, and is lowered in its turn where it does not pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.errors import format_counts
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.schema import count_kinds
from qconvert.operators.formulas import FORMULAS
from qconvert.operators.shapes_and_functions import all_graphs, all_ops
from qconvert.plugins import PassResult, Target, operators
from qconvert.rewriting.lowering import legality, lower

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> PassResult:
    """Lower the operators that have a formula of which all is accepted."""
    if target is None or target.own_rules is None or not any(op.kind in FORMULAS for op in all_ops(graph)):
        return graph, ()
    known, writable = {id(op) for op in all_ops(graph)}, legality(operators(target.format, "write"))
    lacking = {
        id(op) for _, inner in all_graphs(graph) for op in inner.ops if op.kind in FORMULAS and target.violations_alone(inner.tensors, op)
    }

    def legal(tensors: Mapping[str, Tensor], op: Op) -> str:
        if id(op) in known:
            return "no kernel" if id(op) in lacking else ""
        return writable(tensors, op) or next((broken.rule for broken in target.violations_alone(tensors, op)), "")

    lowered = lower(graph, legal)
    counts = count_kinds(op for op in all_ops(graph) if id(op) in lowered.reasons)
    return lowered.graph, (f"composed of operators that {target.name} has: {format_counts(counts)}",) if counts else ()
