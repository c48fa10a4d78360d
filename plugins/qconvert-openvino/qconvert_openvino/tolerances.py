"""Tolerances of the CPU plugin's arithmetic, relative to the exact value."""

from __future__ import annotations

import numpy as np

from qconvert.plugin import Array, Graph, Op, partial_sums

_FEW, _LEAST = 64 * 2.0**-24, 1e-3


def tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    """See qconvert.plugin.Kernel."""
    found = np.maximum(_LEAST, np.abs(exact) * _FEW) + 2 * partial_sums(graph, op, exact, least=255.0)
    return found, False
