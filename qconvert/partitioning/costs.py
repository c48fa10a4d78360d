"""What operators and tensors cost, whatever runs them: multiplications and bytes."""

from __future__ import annotations

from math import prod

from qconvert.arithmetic.dtypes import numpy_dtype
from qconvert.graph.schema import Graph, Op, Shape, Tensor
from qconvert.operators import KINDS, kind_of

__all__ = ["macs", "stored_bytes"]


def macs(graph: Graph, op: Op) -> int:
    """How many products an operator sums in one run: those of convolutions, products of matrices and recurrences; 0 for all others.

    Sizes that are open count as 1. What functions of the operator multiply is left out, since a loop may run them any number of times.
    """
    products = kind_of(op).products if op.kind in KINDS else None
    if products is None:
        return 0
    return products(op, [_sizes(graph[name].shape) if name else () for name in op.inputs], _sizes(graph[op.outputs[0]].shape))


def stored_bytes(tensor: Tensor) -> int:
    """How many bytes a tensor takes where it goes from one part of a network to another: types below 8 bits take a byte there.

    Sizes that are open count as 1, and what has no size of its own, such as text, as 0.
    """
    return 0 if tensor.dtype in ("string", "unknown") else prod(_sizes(tensor.shape)) * numpy_dtype(tensor.dtype).itemsize


def _sizes(shape: Shape | None) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else 1 for size in shape or ())
