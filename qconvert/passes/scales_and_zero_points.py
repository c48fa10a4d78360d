"""Scales by formulas, and zero points that are 0 or suit the range.

power_of_two: scales become powers of two and zero points 0, as Cambricon's and other shift-only hardware wants them. Not exact.

scale = 2**position, and by the formula position = floor(log2(largest magnitude)) - (bits - 2) ("cambricon" of arithmetic/preparation.py, as
OneFlow calls it): the next power of two that holds the range but for less than a step. `rounding` says otherwise: nearest takes the power
of two that is nearest to the largest magnitude / 127, which may clip; mse the one with the smallest mean square error over the codes of an
activation, or over the weights. Unsigned quantizations get the zero point in the middle of their type, but those from zero on keep 0 and
use the bit of the sign. Weights whose scale is a power of two already keep their integers, channel by channel; the others get a scale for
each channel, or, with granularity tensor, one.

google_scales: the scales that the "google" formulas give for the range of each quantization. Not exact.

OneFlow, TensorFlow's training and others compute them from observed ranges (arithmetic/preparation.py): symmetric
scale = largest magnitude / (2**(bits - 1) - 1) with zero point 0; affine scale = (largest - smallest) / (2**bits - 1) with zero point
-round(smallest / scale), of a range that holds zero. By default signed types get the symmetric formula and unsigned ones the affine one;
`scheme` gives all types one of them. A symmetric quantization stands for the range up to its largest integer, without the lowest one, so
a quantization that a formula gave stays as it is. Weights get the symmetric formula, those with the zero point 0 keep their integers.

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

import math
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import affine_range, choose_quantization, dequantize, quantize
from qconvert.arithmetic.storage import bit_width
from qconvert.errors import format_count
from qconvert.graph import Array, Graph, Quantization, Tensor, integer_range
from qconvert.operators.properties import Interval
from qconvert.passes.linear import WeightUse
from qconvert.passes.quantizations.activations import cache_by_quantization, infer_joint_intervals, requantize_activations
from qconvert.passes.quantizations.scales_and_costs import fitting_quantization, least_loss_ratio, middle
from qconvert.passes.quantizations.weights_and_networks import Channel, Rescaled, requantize_network, rescale_symmetric, symmetric_limits
from qconvert.passes.stored_types import SIGNED, UNSIGNED, separate_roles
from qconvert.plugins import Change, PassResult, Target, describe_worst

#: How many positions below the formula's are tried: each finer one clips half of the range more.
_TRIED = 3


def power_of_two(graph: Graph, target: Target | None, rounding: str = "up", granularity: str = "axis", edges: str = "keep") -> PassResult:
    """Change weights, then activations of 4, 8 and 16 bits, and biases with them."""
    return requantize_network(
        graph,
        lambda use, tensor: _rescale_to_powers(use, tensor, rounding, granularity),
        lambda dtype, q: _choose_power_of_two(dtype, q, rounding),
        suffix="power_of_two",
        words=("have powers of two as scales", "have powers of two as scales and no zero point"),
        edges=edges,
    )


def _position(values: Array, limits: tuple[int, int], rounding: str) -> int:
    """Return the exponent of the scale for float values.

    Args:
        values: real.
        limits: of the integers, less the zero point.
        rounding: up, nearest or mse.
    """
    largest = float(np.abs(values).max(initial=0.0))
    if not largest:
        return 0
    bits = (limits[1] + 1).bit_length()
    of_8_bits = math.log2(float(choose_quantization("cambricon", 0, largest)[1].scale[0]))
    formula = round(of_8_bits) - (bits - 8)
    if rounding == "nearest":
        return round(math.log2(largest / limits[1]))
    if rounding == "mse":

        def loss(position: int) -> float:
            scale = 2.0**position
            return float(np.square(np.clip(np.rint(values / scale), *limits) * scale - values).sum())

        return min(reversed(range(formula - _TRIED, formula + 1)), key=loss)
    return formula


def _choose_power_of_two(dtype: str, q: Quantization, rounding: str) -> tuple[str, Quantization] | None:
    """Return the quantization of an activation; None where it is such a one, or has several scales."""
    if not q.is_per_tensor:
        return None
    low, high = integer_range(dtype)
    point = low if float(affine_range(q, dtype)[0][0]) >= 0 and low == 0 else middle(dtype)
    if is_power_of_two(q.step) and q.point == point:
        return None
    lowest, highest = q.limits(dtype)
    values = dequantize(np.arange(lowest, highest + 1), q)
    return dtype, Quantization.per_tensor(2.0 ** _position(values, (low - point, high - point), rounding), point)


def _rescale_to_powers(use: WeightUse, weights: Tensor, rounding: str, granularity: str) -> Rescaled | None:
    low, high = integer_range(weights.dtype)
    limits = (low - middle(weights.dtype), high - middle(weights.dtype))

    def scaling(channel: Channel) -> float | None:
        fits = channel.steps.min() >= limits[0] and channel.steps.max() <= limits[1]
        if is_power_of_two(channel.scale) and fits:
            return None
        return 2.0 ** _position(channel.steps * channel.scale, limits, rounding) / channel.scale

    return rescale_symmetric(use, weights, limits, scaling, granularity)


def is_power_of_two(scale: float) -> bool:
    """Whether a positive number is a power of two."""
    return math.frexp(scale)[0] == 0.5


#: What scales may differ by, as a share, and still be the formula's: a few roundings to float32.
_SAME = 1e-6


def google_scales(graph: Graph, target: Target | None, scheme: str = "types", granularity: str = "axis", edges: str = "keep") -> PassResult:
    """Change weights, then activations of 4, 8 and 16 bits, and biases with them."""
    return requantize_network(
        graph,
        lambda use, tensor: _rescale_by_formula(use, tensor, granularity),
        lambda dtype, q: _choose_by_formula(dtype, q, scheme),
        suffix="google",
        words=("have the scales of the google formula", "have the scales of the google formulas"),
        edges=edges,
    )


def _choose_by_formula(dtype: str, q: Quantization, scheme: str) -> tuple[str, Quantization] | None:
    """Return the formula's quantization for the range of another; None where that is the formula's, or has several scales."""
    if not q.is_per_tensor:
        return None
    (lowest,), (highest,) = affine_range(q, dtype)
    point, bits = q.point, bit_width(dtype)
    if scheme == "symmetric" or (scheme == "types" and integer_range(dtype)[0] < 0):
        if point == middle(dtype):
            return None
        found = choose_quantization("google_symmetric", lowest, highest, bits, dtype=SIGNED.get(dtype, dtype))[1]
        found = found.shift_zero_point(middle(dtype))
    else:
        found = choose_quantization("google_affine", lowest, highest, bits, dtype=dtype)[1]
    if abs(found.step / q.step - 1) < _SAME and found.point == point:
        return None
    return dtype, found


def _rescale_by_formula(use: WeightUse, weights: Tensor, granularity: str) -> Rescaled | None:
    """Return weights of the symmetric formula; scales with the zero point 0 stay unless several shall become one."""
    limits = symmetric_limits(weights.dtype)
    joins = granularity == "tensor" and weights.require_quantization().axis is not None

    def scaling(channel: Channel) -> float | None:
        largest = float(np.abs(channel.steps).max())
        return None if (channel.zero_point == 0 and not joins) or not largest else largest / limits[1]

    return rescale_symmetric(use, weights, limits, scaling, granularity)


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
