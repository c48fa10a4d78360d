"""Tolerances of TVM's arithmetic: float32 between dequantize and quantize, with sums in the order of the loops."""

from __future__ import annotations

import numpy as np

from qconvert.plugin import Array, Graph, Op, partial_sums

#: A few roundings of float32 as a share of the value, and the least of any operator, in steps.
_FEW, _LEAST = 32 * 2.0**-24, 1e-3
#: Curves and normalizations, whose approximations TVM and LLVM choose.
_CURVE = 0.01
_CURVES = frozenset(("Softmax", "LogSoftmax", "Sigmoid", "Tanh", "Gelu", "Erf", "Exp", "Log", "Pow", "Silu", "LayerNormalization"))


def tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    """See qconvert.plugin.Kernel."""
    found = np.maximum(_LEAST, np.abs(exact) * _FEW)
    if op.kind in _CURVES:
        return np.maximum(found, _CURVE), False
    return found + 2 * partial_sums(graph, op, exact, least=255.0), False
