"""How far TVM's arithmetic lies from the exact value: float32 between dequantize and quantize, with sums in the order of the loops."""

from __future__ import annotations

import numpy as np

from qconvert.plugin import KINDS, Array, Graph, Op

__all__ = ["tolerance"]

_FLOAT32 = 2.0**-24
#: A few roundings of float32 as a share of the value, and the least of any operator, in steps.
_FEW, _LEAST = 32 * _FLOAT32, 1e-3
#: Curves and normalizations, whose approximations TVM and LLVM choose.
_CURVE = 0.01
_CURVES = frozenset(("Softmax", "LogSoftmax", "Sigmoid", "Tanh", "Gelu", "Erf", "Exp", "Log", "Pow", "Silu", "LayerNormalization"))


def tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    """See qconvert.plugin.Kernel.

    A sum of n products loses up to sqrt(n) roundings of the largest part (Higham, Accuracy and Stability of Numerical Algorithms,
    section 2.8), which may be larger than the result: as large as the range of 8 bits at least.
    """
    found = np.maximum(_LEAST, np.abs(exact) * _FEW)
    if op.kind in _CURVES:
        return np.maximum(found, _CURVE), False
    if KINDS[op.kind].sums_products:
        largest = max(float(np.abs(exact).max(initial=0)), 255.0)
        found = found + 4 * np.sqrt(_products(graph, op)) * _FLOAT32 * largest
    return found, False


def _products(graph: Graph, op: Op) -> float:
    """How many products each sum has."""
    sizes = graph[op.inputs[1]].static_shape
    if not sizes:
        return 1.0
    return float(np.prod(sizes[1:])) if KINDS[op.kind].has_weights else float(sizes[max(len(sizes) - 2, 0)])
