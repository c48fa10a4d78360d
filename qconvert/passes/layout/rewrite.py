"""How a free or spatial operator is written for the other layout.

`perm` is the transposition from the source's layout to the other: new axis i is old axis perm[i].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.operators import kind_of
from qconvert.passes.layout.roles import data_positions, looks_up

__all__ = ["Constants", "permute_op", "permute_tensor"]

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
        return replace(op.with_attributes(data_format=wanted), inputs=(first, *op.inputs[1:]))
    if "axis" in kind.attributes and not looks_up(graph, op):
        moved = moved.with_attributes(axis=list(perm).index(int(op["axis"]) % rank))
    names, layout = list(op.inputs), kind.layout
    if layout.axes >= 0:
        names[layout.axes] = constant(names[layout.axes], "axes", _permute_axes(graph, names[layout.axes], perm), None)
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
    assert data is not None  # roles.py calls such an operator fixed otherwise
    return np.asarray(data, np.int64).reshape(-1)


def _permute_axes(graph: Graph, name: str, perm: Sequence[int]) -> Array:
    return np.array([list(perm).index(int(axis) % len(perm)) for axis in _values(graph, name)], np.int64)
