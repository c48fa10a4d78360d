"""Which layouts an operator suits.

FIXED operators run in one layout: spatial ones in the target's, those whose meaning depends on the order of axes (Reshape, MatMul …)
in the source's. FREE ones suit either, with their axis attributes and constants renumbered (rewrite.py). TRANSPOSE operators of the
source join two layouts.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.kinds import KINDS

__all__ = ["RANK", "Role", "data_inputs", "role"]

RANK = 4

_ELEMENTWISE = frozenset((
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "FloorDiv", "FloorMod", "SquaredDifference", "PRelu", "Equal",
    "NotEqual", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Where", "Abs", "Neg", "Exp", "Log",
    "Sqrt", "Rsqrt", "Square", "Sin", "Cos", "Round", "Floor", "Ceil", "Sign", "Relu", "HardSwish", "Sigmoid", "Tanh",
    "Xor", "Reciprocal", "Erf", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Softplus", "Softsign", "Mish", "IsNaN",
    "IsInf", "Celu", "Selu", "ThresholdedRelu", "HardSigmoid", "Clip", "LeakyRelu", "Elu", "Gelu", "Not", "Identity",
    "Reinterpret", "Cast", "Quantize", "Dequantize", "Requantize",
))  # fmt: skip
_AXIS = frozenset(["Concat", "Split", "Softmax", "LogSoftmax", "LpNormalization", "CumSum", "TopK"])
_REDUCE = frozenset((
    "ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceAny", "ReduceAll", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
))  # fmt: skip


class Role(Enum):
    """How an operator takes part in the choice of layouts."""

    SOURCE = 0
    TARGET = 1
    FREE = 2
    TRANSPOSE = 3


def role(graph: Graph, op: Op, wanted: str) -> Role:
    """The role of `op` when spatial operators want the data_format `wanted`."""
    if "data_format" in op.attributes:
        return Role.SOURCE if op["data_format"] == wanted or graph[op.inputs[0]].rank != RANK else Role.TARGET
    if op.kind == "Transpose" and graph[op.inputs[0]].rank == RANK:
        return Role.TRANSPOSE
    if op.kind in _ELEMENTWISE:
        return Role.FREE if _broadcasts_freely(graph, op) else Role.SOURCE
    if op.kind in _AXIS:
        return Role.FREE if _keeps_rank(graph, op) else Role.SOURCE
    if op.kind in _REDUCE or op.kind in ("ArgMax", "ArgMin"):
        return Role.FREE if _reduces_freely(graph, op, wanted) else Role.SOURCE
    if op.kind in ("Slice", "Pad", "Tile"):
        constant = [graph.constant(name) is not None for name in op.inputs[1:] if name]
        return Role.FREE if all(constant) and _keeps_rank(graph, op) else Role.SOURCE
    if op.kind == "Gather":
        plain = graph[op.inputs[1]].rank == 1 and op["batch_dims"] == 0
        return Role.FREE if plain and _keeps_rank(graph, op) else Role.SOURCE
    return Role.SOURCE


def data_inputs(op: Op) -> tuple[str, ...]:
    """The inputs whose layout is the operator's: not weights, shapes, axes or indices."""
    count = KINDS[op.kind].data
    return op.inputs if count < 0 else op.inputs[:count]


def _keeps_rank(graph: Graph, op: Op) -> bool:
    data = op.inputs if op.kind == "Concat" else op.inputs[:1]
    return all(graph[name].rank == RANK for name in (*data, *op.outputs))


def _broadcasts_freely(graph: Graph, op: Op) -> bool:
    """Every operand has rank 4, or is a constant that can be given it, or is a single element."""
    return graph[op.outputs[0]].rank == RANK and all(_fits(graph[name]) for name in op.inputs if name)


def _fits(tensor: Tensor) -> bool:
    return tensor.rank == RANK or tensor.is_constant or tensor.rank == 0 or tensor.static_shape == (1,)


def _reduces_freely(graph: Graph, op: Op, wanted: str) -> bool:
    """With keepdims any axes; without, only if the axes that remain keep their order in the other layout."""
    axes = np.array(op["axis"]) if "axis" in op.attributes else graph.constant(op.inputs[1])
    if graph[op.inputs[0]].rank != RANK or axes is None:
        return False
    if op["keepdims"]:
        return True
    gone = {int(axis) % RANK for axis in np.asarray(axes).reshape(-1)}
    order = (0, 3, 1, 2) if wanted == "channels_first" else (0, 2, 3, 1)
    left = [axis for axis in order if axis not in gone]
    return left == sorted(left)
