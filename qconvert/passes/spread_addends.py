"""spread_addends: a number that is added after a convolution over one dimension becomes a vector, with the number for each channel.

Exact: the same is added to each value. TensorRT-RTX 1.7.1 takes a constant after a convolution for its bias, and refuses one of a single
element there ("nbdims_bias"), over one dimension alone. Where the convolution has one channel the vector lies along the positions.
"""

from __future__ import annotations

import numpy as np

from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.plugins import PassResult, Target
from qconvert.plugins.rules import addend
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Let each such Add or Sub read a vector; where neither channels nor positions are several, or known, it stays."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        number = addend(graph, op, rewriter.producers)
        values = None if number is None else _spread_addend(graph, op, number)
        if number is not None and values is not None:
            vector = rewriter.constant(f"{op.name}/addend", values, number.dtype)
            rewriter.replace(op, op.with_names({number.name: vector}))
    return rewriter.finish_with("{} numbers added after convolutions are vectors with one value per channel".format)


def _spread_addend(graph: Graph, op: Op, number: Tensor) -> Array | None:
    """Return the value for each channel, or for each position if there is one channel; None where both are one, or not known."""
    shape = graph[op.name].shape
    assert number.data is not None
    sizes = () if shape is None or len(shape) != 3 else ((shape[1], 1), (1, shape[2]))
    for size in sizes:
        if all(isinstance(item, int) for item in size) and max(map(int, size)) > 1:
            return np.full(tuple(map(int, size)), number.data.reshape(-1)[0], number.data.dtype)
    return None
