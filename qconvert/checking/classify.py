"""Explains the differences of one operator, element by element, from the exact value that both sides round.

With the same inputs, source and result approximate one real number r, in steps of the output's scale. A kernel whose arithmetic is
off by at most e gives an integer within 1/2 + e of r. So a difference is explained exactly if both integers lie within their
kernels' reach of r; then r is near a tie, or the kernels are coarse. The share of elements whose r lies that near to a tie is the
predicted rate: an upper bound for the share that differs. Whatever lies outside is unexplained, and is a fault.

The reach of its kernels comes with each runtime (plugins.Runtime.reach).
"""

from __future__ import annotations

import numpy as np

from qconvert.checking.findings import Finding
from qconvert.graph import Array, Graph, Op, integer_range
from qconvert.plugins import kernels_named

__all__ = ["classify"]

_TIE = 1e-6
#: Steps that a bias rounded to int32 may add are below this, those of an operator's result that is rounded twice above.
_MUCH = 0.1


def classify(
    graph: Graph, op: Op, source: Array, result: Array, exact: Array | None, kernels: tuple[str, str], further: float = 0.0
) -> Finding:
    """The finding for one operator output.

    Args:
        graph, op: the operator in the source's graph.
        source: stored values that the source's kernel gave.
        result: what the result gave for the same inputs, in the source's storage type and layout.
        exact: the real-valued result, or None where integers are only moved or compared.
        kernels: the source's and the result's, as in plugins.kernels_named().
        further: what further roundings add to the result's reach, in steps; see _MUCH.
    """
    if source.shape != result.shape:
        return Finding("unexplained", f"shape {result.shape} instead of {source.shape}", 0.0, float("inf"), 0.0, source.size)
    tensor = graph[op.outputs[0]]
    if source.dtype.kind == "f":
        return _classify_float(source, result)
    difference = np.abs(source.astype(np.int64) - result.astype(np.int64))
    differing = difference != 0
    equal = 1.0 - float(differing.mean()) if source.size else 1.0
    largest = float(difference.max(initial=0))
    if exact is None or tensor.quantization is None:
        verdict, reason = ("unexplained", "moved or compared integers differ") if differing.any() else ("equal", "integers are moved")
        return Finding(verdict, reason, equal, largest, 0.0, int(differing.sum()))
    scale, zero_point = float(tensor.quantization.scale[0]), int(tensor.quantization.zero_point[0])
    low, high = integer_range(tensor.dtype)
    steps = exact / scale
    runtimes = [kernels_named(side) for side in kernels]
    (reach_source, coarse_source), (reach_result, coarse_result) = (runtime.reach(graph, op, steps, name) for runtime, name in runtimes)
    reach_result = reach_result + further
    position = np.clip(steps + zero_point, low, high)
    missed_source = np.abs(source - position) > 0.5 + reach_source
    missed_result = np.abs(result - position) > 0.5 + reach_result
    near_tie = np.abs(np.abs(steps - np.floor(steps)) - 0.5) <= reach_source + reach_result
    predicted = float(near_tie.mean()) if steps.size else 0.0
    unexplained = int((differing & (missed_source | missed_result)).sum())
    if unexplained:
        side = "the source's kernel is outside its known arithmetic" if not (differing & missed_result).any() else "the result is wrong"
        return Finding("unexplained", side, equal, largest, predicted, unexplained)
    if not differing.any():
        return Finding("equal", "", equal, largest, predicted, 0)
    ties = np.abs(np.abs(steps - np.floor(steps)) - 0.5)[differing] <= _TIE
    coarse = coarse_source or coarse_result or further > _MUCH
    reason = "rounding tie" if ties.all() else "order of requantization"
    if coarse and not ties.all():
        reason = f"coarse arithmetic of {runtimes[0 if coarse_source else 1][0].title}'s kernel"
    if further > _MUCH and not (coarse_source or ties.all()):
        reason = "rounded more than once, by several operators in place of one"
    return Finding("approximate" if coarse else "one rounding", reason, equal, largest, predicted, 0)


def _classify_float(source: Array, result: Array) -> Finding:
    """Float outputs agree within 1e-4 of the range of the source's values."""
    a, b = source.astype(np.float64), result.astype(np.float64)
    span = float(a.max(initial=0) - a.min(initial=0)) or 1.0
    difference = np.abs(a - b) / span
    equal = float((source == result).mean()) if source.size else 1.0
    largest = float(difference.max(initial=0))
    if largest == 0:
        return Finding("equal", "", equal, largest, 0.0, 0)
    if largest <= 1e-4:
        return Finding("approximate", "float arithmetic", equal, largest, 1.0, 0)
    return Finding("unexplained", "float values differ", equal, largest, 0.0, int((difference > 1e-4).sum()))
