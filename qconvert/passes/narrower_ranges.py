"""Quantizations that leave integers of their type out.

reduced_range: 7 of 8 bits, so that kernels that add pairs of products in 16 bits do not saturate. Not exact.

onnxruntime's reduce_range leaves weights from -64 to 64, PyTorch's activations from 0 to 127; `reduce` says which of both, or both. Weights
use -64 to 63 around the middle of their type: channels that fit stay as they are, the others get the scale with the smallest mean square
error, one for each channel. Activations get 0 to 127, or -64 to 63 of signed ones, for the range that they have, and never leave it: an
activation, or a Clip where none says it, limits them. Those within this range already stay (passes/quantizations).

narrow_range: weights do not use the lowest integer of their type, -128 in 8 bits, as TFLite's specification wants them. Not exact.

Two products of -128 leave 16 bits, in which some kernels add pairs. Channels without that integer stay as they are. The others keep their
scale, where one step less costs least, or get the one with the smallest mean square error, and are rounded so that their errors cancel.
Of unsigned weights it is 0. Zero points stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import affine_range, quantize
from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range
from qconvert.operators import kind_of
from qconvert.operators.properties import Interval
from qconvert.passes.linear import WeightUse
from qconvert.passes.quantizations.activations import Choice, infer_joint_intervals, requantize_activations
from qconvert.passes.quantizations.scales_and_costs import least_loss_ratio, middle
from qconvert.passes.quantizations.weights_and_networks import (
    Channel,
    Rescaled,
    is_scalable,
    requantize_weights,
    rescale_symmetric,
    rescale_weights,
)
from qconvert.passes.store_activations import separate_roles
from qconvert.plugins import Change, PassResult, Target

_EIGHT_BITS = ("int8", "uint8")
_LIMITS = (-64, 63)


def reduced_range(graph: Graph, target: Target | None, reduce: str = "weights", granularity: str = "axis") -> PassResult:
    """Change 8-bit weights, activations or both, and biases with them."""
    notes: list[Change | str] = []
    if reduce in ("weights", "both"):
        graph, notes = requantize_weights(graph, lambda use, tensor: _weights(use, tensor, granularity), "reduced", "use 7 bits")
    if reduce in ("activations", "both"):
        parts = separate_roles(graph, _EIGHT_BITS)
        choose = _chooser(parts)
        found = requantize_activations(parts, choose, dtypes=_EIGHT_BITS, suffix="reduced", keep_io=True, strictly=True)
        if found is not None:
            graph = found.graph
            notes.append(found.describe_change("use 7 bits"))
    return graph, tuple(notes)


def _weights(use: WeightUse, weights: Tensor, granularity: str) -> Rescaled | None:
    """Return weights of 8 bits in 7; channels around the middle of their type that fit stay."""

    def scaling(channel: Channel) -> float | None:
        fits = channel.zero_point == 0 and channel.steps.min() >= _LIMITS[0] and channel.steps.max() <= _LIMITS[1]
        return None if fits else least_loss_ratio(channel.steps, _LIMITS)

    return rescale_symmetric(use, weights, _LIMITS, scaling, granularity) if weights.dtype in _EIGHT_BITS else None


def _chooser(graph: Graph) -> Choice:
    """Return the quantization of each activation that uses more than 7 bits of its own."""
    intervals = infer_joint_intervals(graph)
    clipped = _find_clipped_tensors(graph, intervals)

    def choose(tensor: Tensor) -> tuple[str, Quantization] | None:
        if tensor.per_tensor is None or tensor.name in clipped or _fits(intervals[tensor.name], tensor):
            return None
        return tensor.dtype, _reduce_range(tensor)

    return choose


def _find_clipped_tensors(graph: Graph, intervals: Mapping[str, Interval]) -> set[str]:
    """Return tensors that are rounded and that nothing reads but Clips with their own quantization to 7 bits: what this pass leaves before
    a Clip."""
    limits = {id(op): op.inputs[0] for op in graph.of_kind("Clip") if _is_limit(graph, op, intervals)}
    rounded = {name for op in graph.ops if kind_of(op).rounds for name in op.outputs}
    readers = graph.consumers()
    return {name for name in rounded.intersection(limits.values()) - graph.public if all(id(op) in limits for op in readers[name])}


def _is_limit(graph: Graph, op: Op, intervals: Mapping[str, Interval]) -> bool:
    result = graph[op.name]
    return result.is_quantized and result.shares_quantization(graph[op.inputs[0]]) and _fits(intervals[result.name], result)


def _lowest(dtype: str) -> int:
    """Return the smallest integer of 7 bits, as PyTorch has them."""
    return -64 if dtype == "int8" else 0


def _fits(interval: Interval, tensor: Tensor) -> bool:
    """Whether the values of an interval have integers of 7 bits on a tensor's quantization."""
    if tensor.dtype not in _EIGHT_BITS:
        return False
    ends, low = quantize(np.array(interval), tensor.require_quantization(), tensor.dtype), _lowest(tensor.dtype)
    return bool(ends[0] >= low and ends[1] <= low + 127)


def _reduce_range(tensor: Tensor) -> Quantization:
    """Return a quantization that holds the range of a tensor's in 7 bits: symmetric if that is, a bit coarser where roundings need it."""
    old = tensor.require_quantization()
    low, (lowest, highest) = _lowest(tensor.dtype), (float(ends[0]) for ends in affine_range(old, tensor.dtype))
    is_symmetric = old.point == 0 and tensor.dtype == "int8"
    scale = max(highest / 63, lowest / -64) if is_symmetric else (max(highest, 0.0) - min(lowest, 0.0)) / 127
    while True:
        point = 0 if is_symmetric else int(np.clip(np.rint(low - min(lowest, 0.0) / scale), low, low + 127))
        found = Quantization.per_tensor(float(np.float32(scale)), point)
        if _fits((lowest, highest), replace(tensor, quantization=found)):
            return found
        scale *= 1 + 1 / 254


def narrow_range(graph: Graph, target: Target | None) -> PassResult:
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
