"""Tolerances that several runtimes share: how far arithmetic may be from the exact value before it rounds, in steps of the result."""

from __future__ import annotations

import numpy as np

from qconvert.graph import Array, Graph, Op
from qconvert.operators import kind_of

#: The tolerance for each element, and whether the arithmetic is so coarse that the operator counts as approximate.
Found = tuple[Array, bool]

_FLOAT32 = 2.0**-21  # a few roundings of 24 bits, as a share of the value
_LEAST = 1e-4
#: The tolerance of a second rounding where a scale that it depends on is not known.
UNKNOWN = 0.02


def fine(exact: Array) -> Array:
    """Return the tolerance of an exact sum that is multiplied by a float32 once."""
    return np.asarray(np.maximum(_LEAST, np.abs(exact) * _FLOAT32))


def is_linear(op: Op) -> bool:
    """Whether a Resize interpolates."""
    return bool(op["mode"] == "linear")


def right_shifts(graph: Graph, op: Op, elements: float = 1.0) -> Array | None:
    """Return the right shifts of TFLite's multipliers, scale product / output scale, one for each channel of the weights; None if a scale
    is unknown.

    Args:
        graph, op: the operator.
        elements: by how many a sum is divided.
    """
    result = graph[op.name].quantization
    product = np.ones(1)
    for name in filter(None, op.inputs[:2]):
        quantization = graph[name].quantization
        if quantization is None:
            return None
        product = np.outer(product, quantization.scale.astype(np.float64)).reshape(-1)
    if result is None:
        return None
    return np.maximum(0, -np.frexp(product / result.step / elements)[1])


def partial_sums(graph: Graph, op: Op, exact: Array, least: float = 0.0) -> float:
    """Return the error of sums of n products in float32, with terms up to the largest result or `least`: errors grow as sqrt(n) (Higham,
    Accuracy and Stability of Numerical Algorithms, section 2.8). 0 for operators without products.

    Args:
        graph, op: the operator.
        exact: in steps of the result.
        least: size of the terms in steps that is assumed in any case.
    """
    if not kind_of(op).sums_products:
        return 0.0
    largest = max(float(np.abs(exact).max(initial=0)), least)
    sizes = graph[op.inputs[1]].static_shape
    count = 1.0 if not sizes else float(np.prod(sizes[1:])) if kind_of(op).has_weights else float(sizes[max(len(sizes) - 2, 0)])
    return float(np.sqrt(count) * 2.0**-23 * largest)
