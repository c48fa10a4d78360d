"""The reach of PyTorch's float32 arithmetic between dequantize and quantize."""

from __future__ import annotations

import numpy as np

from qconvert.graph import Array, Graph, Op
from qconvert.operators import kind_of
from qconvert.runtimes.reach import Reach, fine

__all__ = ["reach"]

#: Kinds of a few products and sums, which are as fine as float32; curves have errors of their own.
_FINE = frozenset(
    ("Add", "Sub", "Mul", "Div", "ReduceMean", "ReduceSum", "AveragePool", "GlobalAveragePool", "Requantize", "Quantize", "LeakyRelu",
     "PRelu", "Relu", "Clip", "Concat", "Resize", "HardSwish", "HardSigmoid")
)  # fmt: skip


def reach(graph: Graph, op: Op, exact: Array, kernels: str) -> Reach:
    """See plugins.Runtime. quantize multiplies by the reciprocal of the scale, another rounding of float32 (fx/_decomposed.py)."""
    if kind_of(op).sums_products:
        return 10 * fine(exact) + _partial_sums(graph, op, exact), False
    return (20 * fine(exact) if op.kind in _FINE else np.full(exact.shape, 0.01)), False


def _partial_sums(graph: Graph, op: Op, exact: Array) -> Array:
    """Sums of n products in float32, whose parts may be larger than the result: their errors add up as sqrt(n) of them do (Higham,
    Accuracy and Stability of Numerical Algorithms, section 2.8)."""
    sizes = graph[op.inputs[1]].static_shape
    count = 1.0 if not sizes else float(np.prod(sizes[1:])) if kind_of(op).has_weights else float(sizes[max(len(sizes) - 2, 0)])
    return np.asarray(np.sqrt(count) * 2.0**-22 * np.maximum(np.abs(exact).max(initial=0), 255.0))
