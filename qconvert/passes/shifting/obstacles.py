"""Which operators go on with integers whose zero point went, and why others do not."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.graph import Graph, Op
from qconvert.operators import kind_of
from qconvert.operators.products import is_product_of_activations
from qconvert.passes.shifting.averages import is_ties_away_average
from qconvert.passes.shifting.linear import linear_obstacle

__all__ = ["is_shift_invariant", "obstacle"]

#: Kinds that pad the data with real zero if no input has another value.
_FILLING = ("Pad", "SpaceToBatch")
#: Kinds that ask which of several stored values is larger, or for sizes alone.
_ASKING = ("ArgMax", "ArgMin", "Shape", "Rank", "Equal", "NotEqual", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_OWN_WAY = ("convert", "relabel", "plain", "opaque", "state", "stored", "control")


def obstacle(graph: Graph, op: Op, points: Mapping[str, int]) -> str:
    """Why an operator has to run in float, in the words of a list of many; "" if it need not.

    Args:
        graph: that it belongs to.
        op: the operator.
        points: the zero points that go, by tensor.
    """
    touched = points.keys() & {*op.inputs, *op.outputs}
    if not touched or kind_of(op).rule in _OWN_WAY or is_shift_invariant(graph, op) or is_ties_away_average(graph, op):
        return ""
    if is_product_of_activations(graph, op):
        return ""
    if op.kind in ("Conv", "Gemm", "MatMul"):
        return linear_obstacle(graph, op, op.inputs[0] in points)
    return "they compute with zero points"


def is_shift_invariant(graph: Graph, op: Op) -> bool:
    """Whether an operator gives the same stored integers whatever one zero point all its sides have."""
    kind = kind_of(op)
    names = [name for name in (*kind.moved_inputs(op), *kind.results_of(op)) if name and graph[name].is_quantized]
    if op.attributes.get("activation") or op.attributes.get("reduction", "none") != "none":
        return False
    if kind.rule == "move":
        return op.kind not in _FILLING or (op.kind == "Pad" and op["mode"] != "constant") or bool(kind.inputs_with_role(op, "filler"))
    shared = all(graph[name].shares_quantization(graph[names[0]]) for name in names[1:])
    if kind.rule == "index":
        return op.kind in _ASKING and shared and all(graph[name].is_quantized for name in kind.moved_inputs(op))
    whole = all(graph[name].is_quantized for name in (*kind.moved_inputs(op), *kind.results_of(op)) if name)
    return shared and whole and (kind.chooses or (op.kind == "Resize" and op["mode"] == "nearest"))
