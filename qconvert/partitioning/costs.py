"""Costs of operators and tensors on any target: multiplications and bytes."""

from __future__ import annotations

from math import prod

from qconvert.arithmetic.storage import numpy_dtype
from qconvert.graph.schema import Graph, Op, Shape, Tensor
from qconvert.operators import find_kind


def macs(graph: Graph, op: Op) -> int:
    """Return the number of products that an operator sums in one run: convolutions, matrix products and recurrences; 0 for all others.

    Dynamic dimensions count as 1. Products in functions of the operator do not count, since a loop may run them any number of times.
    """
    kind = find_kind(op)
    if kind is None or kind.products is None:
        return 0
    return kind.products(op, [_sizes(graph[name].shape) if name else () for name in op.inputs], _sizes(graph[op.outputs[0]].shape))


def stored_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor between two parts of a network: types below 8 bits take a byte there.

    Dynamic dimensions count as 1, and types without a size, such as text, as 0.
    """
    return 0 if tensor.dtype in ("string", "unknown") else prod(_sizes(tensor.shape)) * numpy_dtype(tensor.dtype).itemsize


def _sizes(shape: Shape | None) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else 1 for size in shape or ())
