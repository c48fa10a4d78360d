"""Activations with the zero point 0, and with one for the range that they use.

symmetric_activations: signed activations get quantizations with zero point 0, as targets with symmetric kernels want them. Not exact.

The new scale has the smallest mean square error over the codes of the old quantization: the scale of the whole range,
max(highest / 127, lowest / -128) in 8 bits, or a finer one that clips a little: at zero point -64 three old steps are two new
ones, and no code is off by more than half of an old step. After a Relu, where the zero point is -128, steps become twice as large. What
saturated at a limit of the old range still does: by an activation, or a Clip where none says it; after a Relu that the old quantization
implied, this is the Relu. Biases move to the new scale of the products. Graph inputs and outputs stay as they are, with a Requantize after
or before them, if the target leaves them free; else they change too, and the note names them. It says by how much steps grow: each value is
off by up to half of a new step.

affine_activations: 8-bit activations on symmetric quantizations get affine ones where part of their quantization is never used. Not
exact.

The reverse of symmetric_activations. The range of values of a tensor is fixed by a Relu or another activation, by functions such as
Sigmoid, and by the operators and constants before it (passes/quantizations); tensors between which operators move integers share one
range. The new quantization holds that range and zero. Where each old step can be two or three new ones, and this wastes no more than a
twentieth of the quantization, it is: then no code loses anything. Where the whole quantization is used, as that of a graph's input is,
nothing changes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.errors import format_count
from qconvert.graph import Graph, Quantization, Tensor, integer_range
from qconvert.operators.properties import Interval
from qconvert.passes.quantizations.activations import cache_by_quantization, infer_joint_intervals, requantize_activations
from qconvert.passes.quantizations.scales_and_costs import fitting_quantization, least_loss_ratio, middle
from qconvert.passes.store_activations import separate_roles
from qconvert.passes.stored_types import UNSIGNED
from qconvert.plugins import Change, PassResult, Target, describe_worst


def symmetric_activations(
    graph: Graph, target: Target | None, scope: str = "asked", edges: str = "keep", zero_points: str = "shift"
) -> PassResult:
    """Change the activations of the types in target.storage.symmetric_activations, or of all signed types if all shall be symmetric.

    For a target that shifts them (pass shift_to_symmetric) it does so only if `zero_points` is "symmetric".
    """
    if target is not None and scope != "all" and zero_points == "shift" and target.ensures("shifted zero points"):
        return graph, ()
    every = target is None or scope == "all"
    dtypes = tuple(UNSIGNED) if every or target is None else target.storage.symmetric_activations
    keep_io = edges == "keep" and (target is None or target.storage.free_edges)
    found = requantize_activations(graph, cache_by_quantization(_choose_symmetric), dtypes=dtypes, suffix="symmetric", keep_io=keep_io)
    if found is None:
        return graph, ()
    mean, largest = found.growth
    grown = f"their steps grow {mean:.2f} times on average, at most {largest:.2f}"
    note = f"{format_count(found.count, 'activation', 'have')} the zero point 0{found.edges}{found.clip_note}; {grown}"
    costs = found.costs()
    return found.graph, (Change(f"{note}; {describe_worst(costs)}", costs=costs) if costs else Change(note, exact=True),)


def _choose_symmetric(dtype: str, q: Quantization) -> tuple[str, Quantization] | None:
    """Return the symmetric quantization that loses least of the codes of another; None where that is symmetric."""
    if q.is_symmetric:
        return None
    limits, (lowest, highest) = integer_range(dtype), q.limits(dtype)
    ratios = [least_loss_ratio(np.arange(lowest, highest + 1) - point, limits, simple=True) for point in q.zero_point.reshape(-1)]
    scale = (q.scale * np.reshape(ratios, q.scale.shape)).astype(np.float32)
    quantization = Quantization(scale, np.zeros_like(q.zero_point), q.axis, q.block_size)
    if (lowest, highest) != limits and q.is_per_tensor:  # what saturated early still does
        ends = quantize(dequantize(np.array([lowest, highest]), q), quantization, dtype)
        quantization = replace(quantization, quant_min=int(ends[0]), quant_max=int(ends[1]))
    return dtype, quantization


_EIGHT_BITS = ("int8", "uint8")
#: By how many times steps have to shrink for a change to be worth it, and what whole numbers of new steps in an old one may waste.
_WORTH = 1.05


def affine_activations(graph: Graph, target: Target | None, edges: str = "keep") -> PassResult:
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
