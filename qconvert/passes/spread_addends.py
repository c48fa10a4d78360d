"""spread_addends: a number that is added behind a convolution over one dimension becomes a vector, with the number for each channel.

Exact: the same is added to each value. TensorRT-RTX 1.7.1 takes a constant behind a convolution for its bias, and refuses one of a single
element there ("nbdims_bias"), over one dimension alone. Where the convolution has one channel the vector lies along the positions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Graph, Op, Tensor
from qconvert.plugins import Target
from qconvert.plugins.sides import addend

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Lets such an Add or Sub read a vector; where neither channels nor positions are several, or known, it stays."""
    producers = graph.producers()
    tensors: dict[str, Tensor] = {}
    names = graph.names(tensors)
    ops: list[Op] = []
    for op in graph.ops:
        number = addend(graph, op, producers)
        vector = None if number is None else _spread(graph, op, number)
        if number is not None and vector is not None:
            new = replace(vector, name=names.fresh(f"{op.outputs[0]}/addend"))
            tensors[new.name] = new
            op = replace(op, inputs=tuple(new.name if name == number.name else name for name in op.inputs))
        ops.append(op)
    if not tensors:
        return graph, ()
    return graph.evolve(tensors=tensors.values(), ops=ops), (f"{len(tensors)} numbers behind convolutions are vectors of channels",)


def _spread(graph: Graph, op: Op, number: Tensor) -> Tensor | None:
    """The constant for each channel, or for each position if there is one channel; None where both are one, or not known."""
    shape = graph[op.outputs[0]].shape
    assert number.data is not None
    sizes = () if shape is None or len(shape) != 3 else ((shape[1], 1), (1, shape[2]))
    for size in sizes:
        if all(isinstance(item, int) for item in size) and max(map(int, size)) > 1:
            data = np.full(tuple(map(int, size)), number.data.reshape(-1)[0], number.data.dtype)
            return Tensor("", number.dtype, data.shape, data)
    return None
