"""Operators in two layouts: which layouts one suits, and how a free or spatial one is written for the other layout.

FIXED operators run in one layout: spatial ones in the target's, those whose meaning depends on the order of axes (Reshape, MatMul …) in the
source's. FREE ones suit either, with their axis attributes and constants renumbered. TRANSPOSE operators of the source join two layouts.
`perm` is the transposition from the source's layout to the other: new axis i is old axis perm[i].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.operators import kind_of
from qconvert.operators.properties import Suits, permutation


class Role(Enum):
    """How an operator takes part in the choice of layouts."""

    SOURCE = 0
    TARGET = 1
    FREE = 2
    TRANSPOSE = 3


def role(graph: Graph, op: Op, wanted: str, rank: int, preferred: str = "") -> Role:
    """Return the role of `op` when spatial operators on data of `rank` dimensions want the data_format `wanted`.

    `preferred` is the layout in which its kernel is faster, or which its file has: it may keep that one.
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
    """Return the inputs whose layout is the operator's: not weights, shapes, axes or indices."""
    return tuple(op.inputs[index] for index in data_positions(graph, op) if op.inputs[index])


def data_positions(graph: Graph, op: Op) -> list[int]:
    """Return where the inputs of data_inputs() stand. What is broadcast with the data has their layout too, such as Where's condition; and
    so have the indices into a table of one dimension, in whose place its values stand."""
    kind = kind_of(op)
    if looks_up(graph, op):
        return [kind.layout.flat]
    return kind.positions(op, "data", "factor", *(["index"] if kind.layout.suits is Suits.BROADCASTS else []))


def looks_up(graph: Graph, op: Op) -> bool:
    """Whether an operator gives, for each index, a value of a table of one dimension."""
    return kind_of(op).layout.flat >= 0 and graph[op.inputs[0]].rank == 1 and not op["batch_dims"]


def _keeps_rank(graph: Graph, op: Op, perm: tuple[int, ...]) -> bool:
    """Return whether data and results have the rank concerned, and what names axes or has values for each is constant."""
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
    """Return whether every operand has the rank concerned, or is a constant that can be given it, or is a single element."""
    return graph[op.name].rank == len(perm) and all(_fits(graph[name], len(perm)) for name in op.inputs if name)


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


#: Registers a constant in another form: (name of the original, key, data) -> name.
Constants = Callable[[str, str, Array, Quantization | None], str]


def permute_tensor(tensor: Tensor, perm: Sequence[int]) -> Tensor:
    """Return the tensor with its shape, data and quantization axis transposed."""
    shape = None if tensor.shape is None else tuple(tensor.shape[axis] for axis in perm)
    data = None if tensor.data is None else tensor.data.transpose(perm)
    quantization = None if tensor.quantization is None else tensor.quantization.transpose(perm)
    return replace(tensor, shape=shape, data=data, quantization=quantization)


def permute_op(graph: Graph, op: Op, perm: Sequence[int], wanted: str, constant: Constants) -> Op:
    """Return `op` for data in the other layout; its data inputs and outputs keep their names."""
    rank = len(perm)
    moved = op
    kind = kind_of(op)
    if "data_format" in op.attributes:
        first = _operand(graph, op.inputs[0], perm, constant, single=True)
        return op.with_attributes(data_format=wanted).with_input(0, first)
    if "axis" in kind.attributes and not looks_up(graph, op):
        moved = moved.with_attributes(axis=list(perm).index(int(op["axis"]) % rank))
    names, layout = list(op.inputs), kind.layout
    if layout.axes >= 0:
        axes = np.array([list(perm).index(axis % rank) for axis in _values(graph, names[layout.axes])], np.int64)
        names[layout.axes] = constant(names[layout.axes], "axes", axes, None)
    elif layout.per_axis >= 0:
        values = _values(graph, names[layout.per_axis]).reshape(-1, rank)[:, list(perm)].reshape(-1)
        names[layout.per_axis] = constant(names[layout.per_axis], layout.word, values, None)
    else:
        operands = data_positions(graph, op)
        names = [_operand(graph, name, perm, constant) if index in operands else name for index, name in enumerate(names)]
    return replace(moved, inputs=tuple(names))


def _operand(graph: Graph, name: str, perm: Sequence[int], constant: Constants, *, single: bool = False) -> str:
    """Return the name of a constant operand of an elementwise operator, of the rank concerned and transposed; others keep their name,
    and so does a single element unless `single` ones are wanted of that rank too."""
    tensor = graph.tensors[name] if name else None
    if tensor is None or tensor.data is None or (tensor.data.size == 1 and not single):
        return name
    data, quantization = tensor.data, tensor.quantization
    missing = len(perm) - data.ndim
    if quantization is not None and quantization.axis is not None:
        quantization = _prepend_dimensions(quantization, missing).transpose(perm)
    full = data.reshape((1,) * missing + data.shape)
    return constant(name, "transposed", full.transpose(perm), quantization)


def _prepend_dimensions(quantization: Quantization, missing: int) -> Quantization:
    """Return the quantization of the tensor with `missing` dimensions of size 1 in front."""
    assert quantization.axis is not None
    moved = quantization.with_axis(quantization.axis + missing)
    if not quantization.block_size:
        return moved
    shape = (1,) * missing + quantization.scale.shape
    return replace(moved, scale=quantization.scale.reshape(shape), zero_point=quantization.zero_point.reshape(shape))


def _values(graph: Graph, name: str) -> Array:
    data = graph.constant(name)
    assert data is not None  # role() calls such an operator fixed otherwise
    return np.asarray(data, np.int64).reshape(-1)
