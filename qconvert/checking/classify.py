"""Explains the differences of one operator, element by element, from the exact value that both sides round.

With the same inputs, source and result approximate one real number r, in steps of the output's scale. A kernel whose arithmetic is
off by at most e gives an integer within 1/2 + e of r. So a difference is explained exactly if both integers lie within their
kernels' tolerance of r; then r is near a tie, or the kernels are coarse. The share of elements whose r lies that near to a tie is the
predicted rate: an upper bound for the share that differs. Whatever lies outside is unexplained, and is a fault.

The tolerances of kernels are in their rows (kernels/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qconvert.checking.findings import KERNELS, Finding
from qconvert.graph import Array, Graph, Op
from qconvert.plugins import Runtime, kernels_named

__all__ = ["Sum", "classify", "classify_sums", "resolve_runtime"]

_TIE = 1e-6
#: Steps that a bias rounded to int32 may add are below this, those of an operator's result that is rounded twice above.
_MUCH = 0.1


def classify(
    graph: Graph,
    op: Op,
    source: Array,
    result: Array,
    exact: Array | None,
    kernels: tuple[str, str],
    further: float | Array = 0.0,
    summed: Array | None = None,
) -> Finding:
    """The finding for one operator output.

    Args:
        graph, op: the operator in the source's graph.
        source: stored values that the source's kernel gave.
        result: what the result gave for the same inputs, in the source's storage type and layout.
        exact: the real-valued result, or None where integers are only moved or compared.
        kernels: the source's and the result's, as in plugins.kernels_named().
        further: what further roundings add to the result's tolerance, in steps, of all or of each element; see _MUCH.
        summed: what kernels sum before the activation cuts it off, on which their tolerance depends; `exact` if not given.
    """
    tensor = graph[op.outputs[0]]
    difference = np.abs(source.astype(np.int64) - result.astype(np.int64))
    differing = difference != 0
    equal = 1.0 - float(differing.mean()) if source.size else 1.0
    largest = float(difference.max(initial=0))
    if exact is None or tensor.quantization is None:
        verdict, reason = ("unexplained", "moved or compared integers differ") if differing.any() else ("equal", "integers are moved")
        return Finding(verdict, reason, equal, largest, 0.0, int(differing.sum()))
    scale, zero_point = float(tensor.quantization.scale[0]), int(tensor.quantization.zero_point[0])
    low, high = tensor.quantization.limits(tensor.dtype)
    steps = exact / scale
    sums = steps if summed is None or summed.shape != steps.shape else summed / scale
    runtimes = [resolve_runtime(side) for side in kernels]
    allowed = [runtime.rows(name).tolerance(graph, op, sums) for runtime, name in runtimes]
    (source_tolerance, coarse_source), (result_tolerance, coarse_result) = allowed
    result_tolerance, often = result_tolerance + further, float(np.max(further, initial=0.0)) > _MUCH
    position = np.clip(steps + zero_point, low, high)
    undefined = np.isnan(position)  # what integer NaN becomes, nothing says
    if undefined.any() and (differing & undefined).any():
        return Finding(KERNELS, "each runtime converts NaN to another integer", equal, largest, 1.0, 0)
    missed_source = np.abs(source - position) > 0.5 + source_tolerance
    missed_result = np.abs(result - position) > 0.5 + result_tolerance
    with np.errstate(invalid="ignore"):  # log(0) is infinite
        from_tie = np.abs(np.abs(steps - np.floor(steps)) - 0.5)
    predicted = float((from_tie <= source_tolerance + result_tolerance).mean()) if steps.size else 0.0
    unexplained = int((differing & (missed_source | missed_result)).sum())
    if unexplained:
        side = "the source's kernel is outside its known arithmetic" if not (differing & missed_result).any() else "the result is wrong"
        return Finding("unexplained", side, equal, largest, predicted, unexplained)
    if not differing.any():
        return Finding("equal", "", equal, largest, predicted, 0)
    ties = from_tie[differing] <= _TIE
    coarse = coarse_source or coarse_result or often
    reason = "rounding tie" if ties.all() else "order of requantization"
    if coarse and not ties.all():
        reason = f"coarse arithmetic of {runtimes[0 if coarse_source else 1][0].title}'s kernel"
    if often and not (coarse_source or ties.all()):
        reason = "rounded more than once, because several operators replace one"
    return Finding("approximate" if coarse else "one rounding", reason, equal, largest, predicted, 0)


def resolve_runtime(side: str) -> tuple[Runtime, str]:
    """The runtime and the set of its kernels that a side names; "mixed" is none that a user may choose."""
    name, _, wanted = side.partition(":")
    runtime, first = kernels_named(name)
    return runtime, wanted or first


@dataclass(frozen=True, slots=True)
class Sum:
    """What a sum of products is in real numbers, where a kernel rounds its data in one way.

    Attributes:
        rounding: the way, a value of `arithmetic`; "" where the data are summed as they are.
        exact: in float64.
        bound: how far from it the order of the sum, and ties of the data, may lead; see exact_values.sum_bound().
    """

    rounding: str
    exact: Array
    bound: Array


def classify_sums(source: Array, result: Array, own: Sequence[Sum], its: Sequence[Sum]) -> Finding:
    """The finding for two sums in floats.

    Args:
        source, result: what the kernels gave.
        own, its: what the source, and the result, may have computed, one at least; each of both has to be explained by one as a whole.
    """
    a, b = source.astype(np.float64), result.astype(np.float64)
    differing = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    (way, missed), (other, wrong) = (_find_nearest_sum(item, ways, differing) for item, ways in ((a, own), (b, its)))
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0)) or 1.0
    with np.errstate(invalid="ignore"):
        difference = np.where(differing, np.abs(a - b), 0.0) / scale
    largest, equal = float(np.nan_to_num(difference, nan=np.inf).max(initial=0)), 1.0 - float(differing.mean())
    unexplained = int((missed | wrong).sum())
    if unexplained:
        reason = "the result is wrong" if wrong.any() else "the source's kernel is outside its known arithmetic"
        return Finding("unexplained", reason, equal, largest, 1.0, unexplained)
    if way != other:
        return Finding("dynamic range", f"{_ROUNDINGS[way]} compared with {_ROUNDINGS[other]}", equal, largest, 1.0, 0)
    return Finding("approximate", "float arithmetic", equal, largest, 1.0, 0)


#: What numbers below the smallest normal float32 may come to: XNNPACK takes them for zero, on both sides of a sum.
_FLUSHED = 4 * float(np.finfo(np.float32).tiny)

_ROUNDINGS = {
    "": "float data",
    "blocks": "data quantized in blocks",
    "dynamic": "data quantized by rows or images",
    "dynamic_images": "data quantized by images",
    "dynamic_symmetric": "data quantized symmetrically",
    "dynamic_rows": "data quantized by rows",
    "dynamic_tensor": "data quantized as a whole",
    "dynamic_reduced": "data quantized as a whole in 127 steps",
}


def _find_nearest_sum(values: Array, ways: Sequence[Sum], differing: Array) -> tuple[str, Array]:
    """The way of summing that leaves the fewest of the differing elements unexplained, and which these are."""
    found = []
    for item in ways:
        with np.errstate(invalid="ignore"):
            off = np.where(np.isfinite(values - item.exact), np.abs(values - item.exact), np.where(values == item.exact, 0.0, np.inf))
        off[np.isnan(values) != np.isnan(item.exact)] = np.nan  # which no bound explains, be it infinite
        found.append((item.rounding, differing & ~(off <= item.bound + _FLUSHED)))
    return min(found, key=lambda pair: int(pair[1].sum()))
