"""Quantizations of other widths, and of a part of their type.

change_bits: weights, activations or both in 4, 8 or 16 bits. Widening weights is exact, all else is not.

Weights that become wider keep their integers, scales and zero points. Those that become narrower do so channel by channel where the
integers less the zero point fit; the other channels get the scale with the smallest mean square error and zero point 0, each its own, or
all one (`granularity`), or blocks of matrices one each (`block_size`). Activations that become wider keep the value of every code, 257
(from 8 to 16 bits) or, with a symmetric quantization, 256 finer steps from the next, and their range: results are rounded less. Activations
that become narrower get the finest quantization of their range, symmetric if the old one is. Biases follow; next to 16-bit data they have
64 bits where the target has such.

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

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import affine_range, dequantize, quantize
from qconvert.arithmetic.storage import bit_width
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.operators import kind_of
from qconvert.operators.properties import Interval
from qconvert.passes.linear import BiasQuantizations, WeightUse
from qconvert.passes.quantizations.activations import Choice, cache_by_quantization, infer_joint_intervals, requantize_activations
from qconvert.passes.quantizations.scales_and_costs import fitting_quantization, least_loss_ratio, least_loss_scale, middle, tensor_cost
from qconvert.passes.quantizations.weights_and_networks import (
    Channel,
    Rescaled,
    is_scalable,
    merge_scales,
    requantize_weights,
    rescale_symmetric,
    rescale_weights,
    symmetric_limits,
)
from qconvert.passes.stored_types import SIGNED, UNSIGNED, separate_roles
from qconvert.plugins import Change, PassResult, Target
from qconvert.rewriting.requantize import quantized_bias


def change_bits(
    graph: Graph,
    target: Target | None,
    weight_bits: int = 0,
    activation_bits: int = 0,
    granularity: str = "axis",
    block_size: int = 0,
    edges: str = "keep",
) -> PassResult:
    """Change the weights of Conv, ConvTranspose, Gemm and MatMul, then activations; 0 bits leave them as they are."""
    notes: list[Change | str] = []
    if weight_bits:
        graph, notes = requantize_weights(
            graph, lambda use, tensor: _weights(use, tensor, weight_bits, granularity, block_size), "bits", f"have {weight_bits} bits"
        )
    if activation_bits:
        dtypes = tuple(dtype for dtype in (*UNSIGNED, *SIGNED) if bit_width(dtype) != activation_bits)
        wide = target is None or not target.format or "int64" in target.storage.bias_dtypes.get("int16", ())
        taken = target.storage.activation_dtypes if target is not None else ()
        choose = cache_by_quantization(lambda dtype, q: _to_supported_type(_activation(dtype, q, activation_bits), taken))
        keep_io = edges == "keep"
        found = requantize_activations(graph, choose, dtypes=dtypes, suffix="bits", keep_io=keep_io, wide_biases=wide)
        if found is not None:
            whole = wide and target is not None and bool(target.storage.bias_dtypes)
            graph = _wide_biases(found.graph) if whole and activation_bits == 16 else found.graph
            notes.append(found.describe_change(f"have {activation_bits} bits"))
    return graph, tuple(notes)


def _integer_type(dtype: str, bits: int) -> str:
    return ("u" if dtype.startswith("u") else "") + f"int{bits}"


def _wide_biases(graph: Graph) -> Graph:
    """Store 32-bit biases next to 16-bit data in 64 bits, as TFLite's 16x8 specification has them: kernels add them to sums of 64 bits."""
    biases = BiasQuantizations(graph, "wide")
    for op in biases:
        bias = quantized_bias(graph, op)
        if bias is not None and bias.dtype == "int32" and bias.data is not None and graph[op.inputs[0]].dtype == "int16":
            biases.put(op, bias, replace(bias, dtype="int64", data=bias.data.astype(np.int64)))
    return biases.finish()


def _to_supported_type(found: tuple[str, Quantization] | None, dtypes: Collection[str]) -> tuple[str, Quantization] | None:
    """Return a quantization in the signed type where a target takes that and not the unsigned one."""
    if found is None or found[0] in dtypes or SIGNED.get(found[0]) not in dtypes:
        return found
    signed = SIGNED[found[0]]
    return signed, found[1].shift_zero_point(integer_range(signed)[0])


def _activation(old: str, q: Quantization, bits: int) -> tuple[str, Quantization] | None:
    """Return the quantization of an activation in a type of other width than the old one; None where it has several scales."""
    if not q.is_per_tensor:
        return None
    dtype, width, point = _integer_type(old, bits), bit_width(old), q.point
    is_symmetric = point == middle(old)
    if bits > width and is_symmetric:
        return dtype, Quantization.per_tensor(q.step / 2 ** (bits - width), middle(dtype))
    if bits > width:  # 8 bits have 255 steps, 16 have 65,535, 257 times as many: both quantizations have the same range
        steps, least = (2**bits - 1) // (2**width - 1), integer_range(old)[0]
        return dtype, Quantization.per_tensor(q.step / steps, (point - least) * steps + integer_range(dtype)[0])
    (lowest,), (highest,) = affine_range(q, old)
    return dtype, fitting_quantization(float(lowest), float(highest), dtype, symmetric=is_symmetric)


def _weights(use: WeightUse, weights: Tensor, bits: int, granularity: str, block_size: int) -> Rescaled | None:
    """Return weights in a type of other width; None where they have that already."""
    q, data = weights.quantization, weights.data
    if q is None or data is None or not data.size or weights.dtype not in (*UNSIGNED, *SIGNED) or bit_width(weights.dtype) == bits:
        return None
    if bits > bit_width(weights.dtype):
        return _widen(weights, _integer_type(weights.dtype, bits))
    if not is_scalable(use, weights):
        return None
    dtype = f"int{bits}"
    limits = symmetric_limits(dtype)
    if block_size and data.ndim == 2:
        return _quantize_blocks(weights, 1 - use.axis, block_size, dtype)
    if granularity == "tensor" and q.axis is not None:
        return merge_scales(weights, dtype, limits, least_loss_scale(dequantize(data, q), limits) if data.any() else float(q.scale.max()))

    def scaling(channel: Channel) -> float | None:
        fits = channel.steps.min() >= integer_range(dtype)[0] and channel.steps.max() <= limits[1]
        return None if fits else least_loss_ratio(channel.steps, limits)

    return rescale_weights(weights, None if granularity == "tensor" else use.axis, dtype, limits, scaling)


def _widen(weights: Tensor, dtype: str) -> Rescaled:
    """Return the same integers, scales and zero points in a wider type."""
    assert weights.data is not None
    count = weights.require_quantization().scale.size
    return Rescaled(replace(weights, dtype=dtype, data=weights.data.astype(numpy_dtype(dtype))), None, count, count)


def _quantize_blocks(weights: Tensor, axis: int, size: int, dtype: str) -> Rescaled:
    """Return a matrix of symmetric weights with one scale for each `size` of them along an axis."""
    limits = symmetric_limits(dtype)
    real: Array = np.moveaxis(weights.float_values(), axis, 1)
    count = -(-real.shape[1] // size)
    parts = [real[:, index * size : (index + 1) * size] for index in range(count)]
    scales = np.array([[least_loss_scale(row, limits) if row.any() else 1.0 for row in part] for part in parts], np.float32).T
    wide = np.repeat(scales.astype(np.float64), size, axis=1)[:, : real.shape[1]]
    stored = np.moveaxis(np.clip(np.rint(real / wide), *limits), 1, axis).astype(numpy_dtype(dtype))
    quantization = Quantization(
        np.ascontiguousarray(np.moveaxis(scales, 1, axis)), np.zeros_like(np.moveaxis(scales, 1, axis), np.int64), axis, size
    )
    result = replace(weights, dtype=dtype, data=stored, quantization=quantization)
    return Rescaled(result, tensor_cost(weights, result), 0, scales.size)


_EIGHT_BITS = ("int8", "uint8")
_LIMITS = (-64, 63)


def reduced_range(graph: Graph, target: Target | None, reduce: str = "weights", granularity: str = "axis") -> PassResult:
    """Change 8-bit weights, activations or both, and biases with them."""
    notes: list[Change | str] = []
    if reduce in ("weights", "both"):
        graph, notes = requantize_weights(graph, lambda use, tensor: _reduce_weights(use, tensor, granularity), "reduced", "use 7 bits")
    if reduce in ("activations", "both"):
        parts = separate_roles(graph, _EIGHT_BITS)
        choose = _chooser(parts)
        found = requantize_activations(parts, choose, dtypes=_EIGHT_BITS, suffix="reduced", keep_io=True, strictly=True)
        if found is not None:
            graph = found.graph
            notes.append(found.describe_change("use 7 bits"))
    return graph, tuple(notes)


def _reduce_weights(use: WeightUse, weights: Tensor, granularity: str) -> Rescaled | None:
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
