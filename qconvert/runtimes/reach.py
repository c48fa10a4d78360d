"""How far a kernel's arithmetic may be from the exact value before it rounds: what the runtimes' own files share.

The reach of each kernel comes from its source (docs/measured/kernels.md has the measurements). It is in steps of the output's scale.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.graph import Array, Graph, Op

__all__ = ["UNKNOWN", "Reach", "Rule", "fine", "is_linear", "right_shifts"]

#: The reach for each element, and whether the arithmetic is so coarse that the operator counts as approximate.
Reach = tuple[Array, bool]
#: (graph, operator, exact values in steps) -> reach.
Rule = Callable[[Graph, Op, Array], Reach]

_FLOAT32 = 2.0**-21  # a few roundings of 24 bits, as a share of the value
_LEAST = 1e-4
#: The reach of a second rounding where a scale that it depends on is not known.
UNKNOWN = 0.02


def fine(exact: Array) -> Array:
    """The reach of an exact sum that is multiplied by a float32 once."""
    return np.asarray(np.maximum(_LEAST, np.abs(exact) * _FLOAT32))


def is_linear(op: Op) -> bool:
    """Whether a Resize interpolates."""
    return bool(op["mode"] == "linear")


def right_shifts(graph: Graph, op: Op, elements: float = 1.0) -> Array | None:
    """The right shifts of the multipliers, scale product / output scale, that TFLite applies, one for each channel of the weights; None if
    a scale is not known.

    Args:
        graph, op: the operator.
        elements: by how many a sum is divided.
    """
    result = graph[op.outputs[0]].quantization
    product = np.ones(1)
    for name in filter(None, op.inputs[:2]):
        grid = graph[name].quantization
        if grid is None:
            return None
        product = np.outer(product, grid.scale.astype(np.float64)).reshape(-1)
    if result is None:
        return None
    return np.maximum(0, -np.frexp(product / float(result.scale[0]) / elements)[1])
