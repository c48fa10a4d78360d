"""Which layouts an operator suits.

FIXED operators run in one layout: spatial ones in the target's, those whose meaning depends on the order of axes (Reshape, MatMul …)
in the source's. FREE ones suit either, with their axis attributes and constants renumbered (rewrite.py). TRANSPOSE operators of the
source join two layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import numpy as np

from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.layout import Suits, permutation

__all__ = ["Role", "data_inputs", "data_positions", "looks_up", "role"]


class Role(Enum):
    """How an operator takes part in the choice of layouts."""

    SOURCE = 0
    TARGET = 1
    FREE = 2
    TRANSPOSE = 3


def role(graph: Graph, op: Op, wanted: str, rank: int, preferred: str = "") -> Role:
    """The role of `op` when spatial operators on data of `rank` dimensions want the data_format `wanted`.

    `preferred` is the layout in which its kernel is faster: it may keep that one.
    """
    suits = kind_of(op).layout.suits
    if suits is Suits.DECIDES:
        if preferred == op["data_format"] != wanted and graph[op.inputs[0]].rank == rank:
            return Role.FREE
        return Role.SOURCE if op["data_format"] == wanted or graph[op.inputs[0]].rank != rank else Role.TARGET
    if suits is Suits.TRANSPOSES:
        return Role.TRANSPOSE if graph[op.inputs[0]].rank == rank else Role.SOURCE
    return Role.FREE if suits in _FREE and _FREE[suits](graph, op, permutation(wanted, rank)) else Role.SOURCE


def data_inputs(graph: Graph, op: Op) -> tuple[str, ...]:
    """The inputs whose layout is the operator's: not weights, shapes, axes or indices."""
    return tuple(op.inputs[index] for index in data_positions(graph, op) if op.inputs[index])


def data_positions(graph: Graph, op: Op) -> list[int]:
    """Where the inputs of data_inputs() stand. What is broadcast with the data has their layout too, such as Where's condition; and so have
    the indices into a table of one dimension, in whose place its values stand.
    """
    kind = kind_of(op)
    if looks_up(graph, op):
        return [kind.layout.flat]
    return kind.positions(op, "data", "factor", *(["index"] if kind.layout.suits is Suits.BROADCASTS else []))


def looks_up(graph: Graph, op: Op) -> bool:
    """Whether an operator gives, for each index, a value of a table of one dimension."""
    return kind_of(op).layout.flat >= 0 and graph[op.inputs[0]].rank == 1 and not op["batch_dims"]


def _keeps_rank(graph: Graph, op: Op, perm: tuple[int, ...]) -> bool:
    """Data and results have the rank concerned, and what names axes or has values for each is constant."""
    kind, layout = kind_of(op), kind_of(op).layout
    if looks_up(graph, op):
        return graph[op.inputs[layout.flat]].rank == len(perm)
    if any(graph[name].rank != len(perm) for name in (*kind.data(op), *kind.results_of(op))):
        return False
    if layout.flat >= 0:
        return graph[op.inputs[layout.flat]].rank == 1 and op["batch_dims"] == 0
    named = kind.inputs_with_role(op, "index", "filler") if layout.axes >= 0 or layout.per_axis >= 0 else []
    return all(graph[name].is_constant for name in named)


def _broadcasts(graph: Graph, op: Op, perm: tuple[int, ...]) -> bool:
    """Every operand has the rank concerned, or is a constant that can be given it, or is a single element."""
    return graph[op.outputs[0]].rank == len(perm) and all(_fits(graph[name], len(perm)) for name in op.inputs if name)


def _fits(tensor: Tensor, rank: int) -> bool:
    return tensor.rank == rank or tensor.is_constant or tensor.rank == 0 or tensor.static_shape == (1,)


def _reduces(graph: Graph, op: Op, perm: tuple[int, ...]) -> bool:
    """With keepdims any axes; without, only if the axes that remain keep their order in the other layout."""
    axes = np.array(op["axis"]) if "axis" in op.attributes else graph.constant(op.inputs[1])
    if graph[op.inputs[0]].rank != len(perm) or axes is None:
        return False
    if op["keepdims"]:
        return True
    gone = {int(axis) % len(perm) for axis in np.asarray(axes).reshape(-1)}
    left = [axis for axis in perm if axis not in gone]
    return left == sorted(left)


#: What each kind of operator that suits any layout asks for.
_FREE: dict[Suits, Callable[[Graph, Op, tuple[int, ...]], bool]] = {
    Suits.BROADCASTS: _broadcasts,
    Suits.KEEPS_RANK: _keeps_rank,
    Suits.REDUCES: _reduces,
}
