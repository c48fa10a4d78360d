"""How far the CPU plugin's arithmetic lies from the exact value."""

from __future__ import annotations

import numpy as np

from qconvert.plugin import KINDS, Array, Graph, Op

__all__ = ["tolerance"]

_FLOAT32 = 2.0**-24
_FEW, _LEAST = 64 * _FLOAT32, 1e-3
_CURVE = 0.02


def tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    """See qconvert.plugin.Kernel."""
    found = np.maximum(_LEAST, np.abs(exact) * _FEW)
    if KINDS[op.kind].sums_products:
        sizes = graph[op.inputs[1]].static_shape or (1,)
        count = float(np.prod(sizes[1:])) if KINDS[op.kind].has_weights else float(sizes[max(len(sizes) - 2, 0)])
        found = found + 4 * np.sqrt(count) * _FLOAT32 * max(float(np.abs(exact).max(initial=0)), 255.0)
    return found, False
