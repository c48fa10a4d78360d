"""Pools. Formulas: ONNX AveragePool and MaxPool (opset 22)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import TORCH_AVERAGES, average_away, average_up, saturate, torch_average
from qconvert.arithmetic.storage import Array, integer_range
from qconvert.graph.schema import Graph, Op, Tensor
from qconvert.operators.attributes import ACTIVATION, DATA_FORMAT, WINDOW, AttributeSpec, choice, flag, has, integers
from qconvert.operators.call import Call, ExactResult, Result, apply_activation, channels_first, channels_last, clip_stored, spatial_axes
from qconvert.operators.kind import Kind
from qconvert.operators.properties import DECIDES, AxisMove, as_reduction, fixed_bounds, within_data, within_data_or_zero
from qconvert.operators.sizes import (
    ShapeContext,
    Shapes,
    axes_of_space,
    channel_count,
    padding,
    per_spatial_axis,
    stated_pads,
    window_extent,
    window_sizes,
    with_spatial,
)


def _pool_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.known_shape(0)
    axes = axes_of_space(op, data)
    kernel = per_spatial_axis(op, "kernel_shape", len(axes), 1)
    dilations = per_spatial_axis(op, "dilations", len(axes), 1) if op.attributes.get("dilations") else [1] * len(axes)
    sizes = window_sizes(op, [data[axis] for axis in axes], kernel, dilations)
    return [with_spatial(op, data[0], sizes, channel_count(op, data))]


def _global_pool_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.shape(0)
    return [None if data is None else with_spatial(op, data[0], [1] * len(axes_of_space(op, data)), channel_count(op, data))]


def _keeps_nonspatial_axis(move: AxisMove) -> bool:
    """Scales along batch or channels survive."""
    return move.a == move.b and move.a in (0, len(move.before) - 1 if move.op["data_format"] == "channels_last" else 1)


def extract_windows(call: Call, values: Array, fill: Any, pad: Any = None) -> Array:
    """Channels-last values as [N, *output sizes, C, *kernel].

    Padding has the value `pad`, or `fill` if there is none; what ceil_mode lets hang over after it has `fill`.
    """
    kernel = tuple(call["kernel_shape"])
    given: Any = call.op.attributes.get("dilations")  # AveragePool has none
    dilations = tuple(given or (1,) * len(kernel))
    pads = padding(call, values.shape[1:-1], kernel, dilations)
    values = np.pad(values, [(0, 0), *pads, (0, 0)], constant_values=fill if pad is None else pad)
    extents = list(map(window_extent, kernel, dilations))
    over = [0] * len(kernel)
    if call["ceil_mode"]:
        over = [_overhang(*each) for each in zip(values.shape[1:-1], extents, call["strides"], pads, strict=True)]
    values = np.pad(values, [(0, 0), *((0, extra) for extra in over), (0, 0)], constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(values, extents, axis=tuple(range(1, 1 + len(kernel))))
    starts = tuple(slice(None, None, stride) for stride in call["strides"])
    return windows[(slice(None), *starts, slice(None), *(slice(None, None, dilation) for dilation in dilations))]


def _overhang(size: int, extent: int, stride: int, pads: tuple[int, int]) -> int:
    """Elements that a last window needs after a padded size; it must start on data or on the padding in front."""
    start = -(-(size - extent) // stride) * stride
    return max(start + extent - size, 0) if start < size - pads[1] else 0


def max_pool(call: Call) -> Array:
    """MaxPool of ONNX: the largest stored value; padding never wins."""
    data = call.raw()
    dtype = call.results[0].dtype
    lowest = integer_range(dtype)[0] if "int" in dtype else -np.inf
    windows = extract_windows(call, channels_last(call, data), lowest)
    largest = windows.max(axis=tuple(range(-len(call["kernel_shape"]), 0)))
    return clip_stored(call, channels_first(call, largest))


def _sum_windows(call: Call, values: Array, counted: int = 0) -> tuple[Array, Array]:
    """The sum of each window, channels last, and how many elements it has; stated padding counts if asked for."""
    data, axes = channels_last(call, values), tuple(range(-len(call["kernel_shape"]), 0))
    count = extract_windows(call, np.ones((1, *data.shape[1:-1], 1), np.int64), 0, counted).sum(axis=axes)
    return extract_windows(call, data, 0.0).sum(axis=axes), count


def average_pool(call: Call) -> Result:
    """AveragePool of ONNX, where only the padding that `pads` names may count.

    `arithmetic` rounds x.5 of the stored integers where both sides have one quantization; that of PyTorch's kernels counts all padding.
    """
    quantization, (steps, scale) = call.quantization(), call.factor(0)
    sums, count = _sum_windows(call, steps, call["count_include_pad"])
    real = apply_activation(channels_first(call, sums / count * scale), call["activation"])
    if quantization is None or not call["arithmetic"] or call.results[0].quantization != quantization:
        return real
    zero_point, total = quantization.point, sums.astype(np.int64)
    if call["arithmetic"] in TORCH_AVERAGES:
        stored_sums, even = channels_first(call, total + zero_point * count), (count == count.flat[0]).all() if count.size else True
        sizes = call["kernel_shape"] if even and count.size else (channels_first(call, count),)
        stored = torch_average(call["arithmetic"], stored_sums, quantization, sizes, call.results[0].dtype)
        return ExactResult(real, clip_stored(call, stored))
    average = average_up if call["arithmetic"] == "ties_up" else average_away
    # "Away" is from the stored zero of the signed type, which uint8 storage holds as 128.
    zero = 128 if call.results[0].dtype == "uint8" else 0
    stored_average = average(total + (zero_point - zero) * count, count) + zero
    stored = saturate(channels_first(call, stored_average), call.results[0].dtype)
    return ExactResult(real, clip_stored(call, stored))


def average_pads(op: Op, sizes: Sequence[int], wanted: Sequence[int]) -> tuple[tuple[int, ...], Array]:
    """All the padding of an AveragePool, and which share of each of its windows ONNX counts.

    Args:
        op: the operator.
        sizes, wanted: of the spatial axes of data and result.

    Returns:
        pads: before and after, what the last windows hang over (ceil_mode) included.
        share: of the result's spatial axes.
    """
    kernel, strides, count = op["kernel_shape"], op["strides"], len(op["kernel_shape"])
    stated = stated_pads(op, sizes, kernel, (1,) * count)
    ends: list[int] = []
    share: Array = np.ones(())
    for axis in range(count):
        begin, end = stated[axis], stated[count + axis]
        starts = np.arange(wanted[axis]) * strides[axis] - begin
        first, last = (-begin, sizes[axis] + end) if op["count_include_pad"] else (0, sizes[axis])
        counted = np.minimum(starts + kernel[axis], last) - np.maximum(starts, first)
        share = np.multiply.outer(share, counted / kernel[axis])
        ends.append(max(int(starts[-1]) + kernel[axis] - sizes[axis], 0))
    return (*stated[:count], *ends), share


def l2_pool(call: Call) -> Array:
    """The square root of the mean of squares in each window; padding does not count."""
    total, count = _sum_windows(call, np.square(call.values()))
    return apply_activation(channels_first(call, np.sqrt(total / count)), call["activation"])


def global_average_pool(call: Call) -> Result:
    """GlobalAveragePool of ONNX: the mean over all spatial dimensions; with an arithmetic the stored one is that of the kernel named."""
    steps, scale = call.factor(0)
    axes = tuple(spatial_axes(call, steps.ndim))
    real = np.asarray(steps.mean(axis=axes, keepdims=True) * scale)
    quantization, result = call.quantization(), call.results[0]
    if not call["arithmetic"] or quantization is None or result.quantization != quantization:
        return real
    total = call.raw().astype(np.int64).sum(axis=axes, keepdims=True)
    sizes = [steps.shape[axis] for axis in axes]
    return ExactResult(real, torch_average(call["arithmetic"], total, quantization, sizes, result.dtype))


def global_max_pool(call: Call) -> Array:
    """GlobalMaxPool of ONNX: the largest stored value over all spatial dimensions."""
    data = call.raw()
    return np.asarray(data.max(axis=tuple(spatial_axes(call, data.ndim)), keepdims=True))


def _without_padding(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """Whether padding counts says nothing where there is none."""
    return op if any(op["pads"]) or op["auto_pad"] != "NOTSET" else op.with_attributes(count_include_pad=0)


_POOL: dict[str, AttributeSpec] = {"kernel_shape": integers(), "ceil_mode": flag(0), **WINDOW}

KINDS = (
    # Averages of few integers often are ties, so how a source rounds them belongs to the graph.
    Kind(
        "AveragePool",
        bounds=within_data_or_zero,
        canonical=_without_padding,
        averages=True,
        keeps_range=True,
        scales_channels=True,
        shape=_pool_shape,
        evaluate=average_pool,
        layout=DECIDES,
        attributes=has(_POOL, ACTIVATION, arithmetic=choice(("", "ties_up", "ties_away", *TORCH_AVERAGES), ""), count_include_pad=flag(0)),
    ),
    Kind(
        "MaxPool",
        bounds=within_data_or_zero,
        scales_channels=True,
        shape=_pool_shape,
        rule="move",
        by_place=False,
        evaluate=max_pool,
        layout=DECIDES,
        keeps_axis=_keeps_nonspatial_axis,
        attributes=has(_POOL, ACTIVATION, dilations=integers(())),
        rounds_once=True,
    ),
    Kind("L2Pool", bounds=fixed_bounds(0.0), shape=_pool_shape, evaluate=l2_pool, layout=DECIDES, attributes=has(_POOL, ACTIVATION)),
    Kind(
        "GlobalAveragePool",
        bounds=within_data,
        canonical=as_reduction("ReduceMean"),
        averages=True,
        keeps_range=True,
        scales_channels=True,
        shape=_global_pool_shape,
        evaluate=global_average_pool,
        layout=DECIDES,
        attributes=has(DATA_FORMAT, arithmetic=choice(("", *TORCH_AVERAGES), "")),
    ),
    Kind(
        "GlobalMaxPool",
        canonical=as_reduction("ReduceMax"),
        scales_channels=True,
        shape=_global_pool_shape,
        rule="move",
        by_place=False,
        evaluate=global_max_pool,
        layout=DECIDES,
        keeps_axis=_keeps_nonspatial_axis,
        attributes=has(DATA_FORMAT),
        rounds_once=True,
    ),
)
