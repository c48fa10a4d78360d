"""narrow_range: weights do not use the lowest integer of their type, -128 in 8 bits, as TFLite's specification wants them. Not exact.

Two products of -128 leave 16 bits, in which some kernels add pairs. Channels without that integer stay as they are. The others keep their
scale, where one step less costs least, or get the one with the smallest mean square error, and are rounded so that their errors cancel.
Of unsigned weights it is 0. Zero points stay.
"""

from __future__ import annotations

from qconvert.graph import Graph, Tensor, integer_range
from qconvert.passes.linear import WeightUse
from qconvert.passes.quantizations.scales_and_costs import least_loss_ratio, middle
from qconvert.passes.quantizations.weights_and_networks import (
    Channel,
    Rescaled,
    is_scalable,
    requantize_weights,
    rescale_weights,
)
from qconvert.plugins import PassResult, Target


def run(graph: Graph, target: Target | None) -> PassResult:
    """Change the weights of Conv, ConvTranspose, Gemm and MatMul."""
    changed, notes = requantize_weights(graph, _narrow, "narrow", "leave the lowest integer of their type out")
    return changed, tuple(notes)


def _narrow(use: WeightUse, weights: Tensor) -> Rescaled | None:
    """Return weights with each channel within the limits around its own zero point; one scale stays one."""
    if not is_scalable(use, weights) or weights.data is None or weights.quantization is None:
        return None
    low, high = integer_range(weights.dtype)
    if not weights.data.size or int(weights.data.min()) > low:
        return None
    limits = (low + 1 - middle(weights.dtype), high - middle(weights.dtype))

    def scaling(channel: Channel) -> float | None:
        step_limits = (limits[0] - channel.zero_point, limits[1] - channel.zero_point)
        return least_loss_ratio(channel.steps, step_limits) if channel.steps.min() < step_limits[0] else None

    return rescale_weights(weights, None, weights.dtype, limits, scaling, keeps_points=True)
