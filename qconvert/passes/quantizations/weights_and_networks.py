"""Weights with other quantizations, channel by channel; what a quantization can keep stays as it is. And a whole network with other
quantizations: its weights, then its activations of 4, 8 and 16 bits, and biases with both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from qconvert.arithmetic import dequantize, scale_and_zero_point
from qconvert.errors import format_count
from qconvert.graph import Array, Graph, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.passes.linear import WeightUse, replace_weights, weight_uses, with_biases
from qconvert.passes.quantizations.activations import TypeChoice, cache_by_quantization, requantize_activations
from qconvert.passes.quantizations.scales_and_costs import middle, rounded_steps, tensor_cost
from qconvert.passes.stored_types import SIGNED, UNSIGNED, as_signed
from qconvert.plugins import Change, Cost, PassResult, describe_worst


class Channel(NamedTuple):
    """The weights of one output channel, or of the whole tensor where that has one scale.

    Attributes:
        steps: integers less the zero point.
        scale: of each step.
        zero_point: less the middle of their type.
    """

    steps: Array
    scale: float
    zero_point: int


#: The new scale over the old one; None keeps scale and integers.
Scaling = Callable[[Channel], "float | None"]
#: How a quantized constant is read, and the constant -> the weights in its place; None if they stay.
WeightChoice = Callable[[WeightUse, Tensor], "Rescaled | None"]


class Rescaled(NamedTuple):
    """Weights with another quantization, what that costs, and how many channels kept their scale and all values, of how many."""

    tensor: Tensor
    cost: Cost | None
    kept: int
    channels: int

    @property
    def is_exact(self) -> bool:
        """Whether all channels keep their scale: on another one biases are rounded again, even if all weights keep their values."""
        return self.cost is None and self.kept == self.channels


def symmetric_limits(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest step of symmetric weights, without the lowest integer, as TFLite's specification wants them."""
    high = integer_range(dtype)[1] - middle(dtype)
    return -high, high


def rescale_weights(
    weights: Tensor, axis: int | None, dtype: str, limits: tuple[int, int], scaling: Scaling, *, keeps_points: bool = False
) -> Rescaled:
    """Return weights with quantizations of a type whose zero points are its middle, or those that they have.

    Args:
        weights: with a quantization of one scale, or of one for each output channel.
        axis: of the channels that get a scale of their own; None for one scale. That of the weights' own scales, if they have several.
        dtype: the type to store them in.
        limits: the smallest and the largest integer, less the middle of the type, of channels that change.
        scaling: the change of scale of each.
        keeps_points: whether channels keep their zero points.
    """
    q, data = weights.quantization, weights.data
    assert q is not None and data is not None and not q.block_size
    steps = weights.steps()
    along = q.axis if q.axis is not None else axis
    parts = steps[None] if along is None else np.moveaxis(steps, along, 0)
    scales, points = (np.broadcast_to(values, len(parts)) for values in (q.scale, q.zero_point - middle(weights.dtype)))
    ratios = [
        scaling(Channel(part, float(scale), int(point))) if part.size else None
        for part, scale, point in zip(parts, scales, points, strict=True)
    ]
    moved = [index for index, ratio in enumerate(ratios) if ratio is not None]
    if q.axis is None and all(ratio in (None, 1.0) for ratio in ratios):
        along = None
    new = np.array([float(scale) * (ratio or 1.0) for scale, ratio in zip(scales, ratios, strict=True)], np.float32)
    kept = points if keeps_points else np.zeros_like(points)
    for index in moved:
        step_limits = (limits[0] - int(kept[index]), limits[1] - int(kept[index]))
        parts[index] = rounded_steps(parts[index], float(new[index]) / float(scales[index]), step_limits)
    count = 1 if along is None else len(parts)
    quantization = Quantization(new[:count], np.asarray(kept[:count] + middle(dtype), np.int64), along)
    stored = steps + scale_and_zero_point(quantization, data.shape)[1]
    result = replace(weights, dtype=dtype, data=stored.astype(numpy_dtype(dtype)), quantization=quantization)
    return Rescaled(result, tensor_cost(weights, result) if moved else None, len(parts) - len(moved), len(parts))


def merge_scales(weights: Tensor, dtype: str, limits: tuple[int, int], scale: float) -> Rescaled:
    """Return weights with a symmetric quantization of a type with one scale; channels that have it keep their integers."""
    new = float(np.float32(scale))

    def scaling(channel: Channel) -> float | None:
        fits = channel.scale == new and channel.steps.min() >= limits[0] and channel.steps.max() <= limits[1]
        return None if fits else new / channel.scale

    found = rescale_weights(weights, None, dtype, limits, scaling)
    result = replace(found.tensor, quantization=Quantization.per_tensor(new, middle(dtype)))
    return found._replace(tensor=result, cost=tensor_cost(weights, result))


def is_scalable(use: WeightUse, weights: Tensor) -> bool:
    """Whether weights are integers with one scale, or one for each of their output channels."""
    q = weights.quantization
    return q is not None and weights.dtype in (*SIGNED, *UNSIGNED) and not q.block_size and q.axis in (None, use.axis)


def rescale_symmetric(use: WeightUse, weights: Tensor, limits: tuple[int, int], scaling: Scaling, granularity: str) -> Rescaled | None:
    """Return weights of the same width on symmetric quantizations; None where they have no elements, or are not scalable.

    Unsigned weights with several scales become signed, as kernels require.

    Args:
        use: how they are read.
        weights: the constant.
        limits: the smallest and the largest integer, less the zero point.
        scaling: the change of scale of each channel, or of all values in steps of the largest scale.
        granularity: axis or tensor.
    """
    q, data = weights.require_quantization(), weights.data
    if data is None or not data.size or not is_scalable(use, weights):
        return None
    if granularity != "tensor" or q.axis is None:
        found = rescale_weights(weights, use.axis if granularity != "tensor" else None, weights.dtype, limits, scaling)
    else:
        largest = float(q.scale.max())
        ratio = scaling(Channel(dequantize(data, q) / largest, largest, 0))
        found = merge_scales(weights, weights.dtype, limits, largest * (ratio or 1.0))
    return found if found.tensor.per_tensor is not None else found._replace(tensor=as_signed(found.tensor))


def requantize_weights(graph: Graph, choose: WeightChoice, suffix: str, words: str) -> tuple[Graph, list[Change | str]]:
    """Return the graph with the weights that `choose` gives, and their biases on the products' new scale; and what that costs.

    Args:
        graph: what is changed.
        choose: the new weights for each use of quantized constants by linear operators; None if they stay.
        suffix: of the names of constants that stand next to their old form.
        words: what is true of the weights then.
    """
    found = [(use, new) for use in weight_uses(graph) if (new := choose(use, graph[use.name])) is not None]
    found = [(use, new) for use, new in found if new.tensor != graph[use.name]]
    if not found:
        return graph, []
    changed, names = replace_weights(graph, [(use, new.tensor) for use, new in found], suffix)
    return with_biases(changed, names, suffix), _describe_weights([new for _, new in found], words)


def sum_costs(found: Sequence[Rescaled]) -> tuple[int, int, tuple[Cost, ...], str]:
    """Return how many channels of weights kept their scale and all values, of how many, and what the others cost, also in words."""
    kept, channels = sum(item.kept for item in found), sum(item.channels for item in found)
    costs = tuple(item.cost for item in found if item.cost is not None)
    return kept, channels, costs, describe_worst(costs) if costs else "all values are the same"


def _describe_weights(found: Sequence[Rescaled], words: str) -> list[Change | str]:
    """Return what weights cost, in words: those that keep all values, and those of which some channels do not."""
    exact, lossy = [item for item in found if item.is_exact], [item for item in found if not item.is_exact]
    said: list[Change | str] = (
        [Change(f"{format_count(len(exact), 'weight', words)}; all their values are kept", exact=True)] if exact else []
    )
    if lossy:
        kept, channels, costs, worst = sum_costs(lossy)
        text = f"{format_count(len(lossy), 'weight', words)}: {kept} of {channels} scales and their values are kept; {worst}"
        said.append(Change(text, costs=costs))
    return said


def requantize_network(
    graph: Graph,
    weights: WeightChoice,
    activation: TypeChoice,
    *,
    suffix: str,
    words: tuple[str, str],
    edges: str,
) -> PassResult:
    """Return the graph, and what was changed.

    Args:
        graph: what is changed.
        weights: those for each use by a linear operator; None if they stay.
        activation: the quantization of each activation, by its type and quantization; None if it stays.
        suffix: of the names of what stands next to its old form.
        words: what is true of the weights, and of the activations, then.
        edges: "keep" leaves graph inputs and outputs as they are.
    """
    graph, notes = requantize_weights(graph, weights, suffix, words[0])
    requantized = requantize_activations(
        graph, cache_by_quantization(activation), dtypes=(*UNSIGNED, *SIGNED), suffix=suffix, keep_io=edges == "keep"
    )
    if requantized is None:
        return graph, tuple(notes)
    return requantized.graph, (*notes, requantized.describe_change(words[1]))
