"""affine_activations: 8-bit activations on symmetric quantizations get affine ones where part of their quantization is never used. Not
exact.

The reverse of symmetric_activations. The range of values of a tensor is fixed by a Relu or another activation, by functions such as
Sigmoid, and by the operators and constants before it (passes/quantizations); tensors between which operators move integers share one
range. The new quantization holds that range and zero. Where each old step can be two or three new ones, and this wastes no more than a
twentieth of the quantization, it is: then no code loses anything. Where the whole quantization is used, as that of a graph's input is,
nothing changes.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Quantization, Tensor, integer_range
from qconvert.operators.properties import Interval
from qconvert.passes.quantizations.activations import infer_joint_intervals, requantize_activations
from qconvert.passes.quantizations.scales_and_costs import fitting_quantization, middle
from qconvert.passes.store_activations import separate_roles
from qconvert.plugins import PassResult, Target

_EIGHT_BITS = ("int8", "uint8")
#: By how many times steps have to shrink for a change to be worth it, and what whole numbers of new steps in an old one may waste.
_WORTH = 1.05


def run(graph: Graph, target: Target | None, edges: str = "keep") -> PassResult:
    """Change symmetric 8-bit activations; an unsigned quantization is symmetric around the middle of its type."""
    source, graph = graph, separate_roles(graph, _EIGHT_BITS)
    intervals = infer_joint_intervals(graph)

    def choose(tensor: Tensor) -> tuple[str, Quantization] | None:
        found = _choose_affine(tensor, intervals[tensor.name]) if tensor.name in intervals else None
        return None if found is None else (tensor.dtype, found)

    found = requantize_activations(graph, choose, dtypes=_EIGHT_BITS, suffix="affine", keep_io=edges == "keep")
    if found is None:
        return source, ()
    return found.graph, (replace(found, intervals=intervals).describe_change("have a zero point and the scale of the range that they use"),)


def _choose_affine(tensor: Tensor, interval: Interval) -> Quantization | None:
    """Return a finer quantization of the range of a tensor; None where there is none, or its quantization is affine."""
    q = tensor.per_tensor
    if q is None or q.point != middle(tensor.dtype) or q.quant_min is not None or q.quant_max is not None:
        return None
    low, high = integer_range(tensor.dtype)
    scale = q.step
    lowest, highest = (min(round(interval[0] / scale), 0), max(round(interval[1] / scale), 0))
    finer = (high - low) / max(highest - lowest, 1)
    if finer < _WORTH:
        return None
    whole = int(finer)
    if whole > 1 and finer / whole <= _WORTH:
        return Quantization.per_tensor(scale / whole, low - lowest * whole)
    return fitting_quantization(lowest * scale, highest * scale, tensor.dtype, symmetric=False)
