"""Pools and resizing."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from qconvert.arithmetic import average_away, average_up, saturate
from qconvert.errors import UnsupportedError
from qconvert.evaluate.call import (
    Call,
    ExactResult,
    Function,
    Result,
    activated,
    activated_stored,
    channels_first,
    channels_last,
    spatial_axes,
)
from qconvert.evaluate.linear import padding
from qconvert.graph import Array, integer_range

__all__ = ["FUNCTIONS"]


def _windows(call: Call, values: Array, fill: Any, pad: Any = None) -> Array:
    """Channels-last values as [N, *output sizes, C, *kernel].

    Padding has the value `pad`, or `fill` if there is none; what ceil_mode lets hang over behind it has `fill`.
    """
    kernel = tuple(call["kernel_shape"])
    given: Any = call.op.attributes.get("dilations")  # AveragePool has none
    dilations = tuple(given or (1,) * len(kernel))
    pads = padding(call, values.shape[1:-1], kernel, dilations)
    values = np.pad(values, [(0, 0), *pads, (0, 0)], constant_values=fill if pad is None else pad)
    reach = [(taps - 1) * dilation + 1 for taps, dilation in zip(kernel, dilations, strict=True)]
    over = [0] * len(kernel)
    if call["ceil_mode"]:
        over = [_overhang(*each) for each in zip(values.shape[1:-1], reach, call["strides"], pads, strict=True)]
    values = np.pad(values, [(0, 0), *((0, extra) for extra in over), (0, 0)], constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(values, reach, axis=tuple(range(1, 1 + len(kernel))))
    starts = tuple(slice(None, None, stride) for stride in call["strides"])
    return windows[(slice(None), *starts, slice(None), *(slice(None, None, dilation) for dilation in dilations))]


def _overhang(size: int, reach: int, stride: int, pads: tuple[int, int]) -> int:
    """Elements that a last window needs behind a padded size; it must start on data or on the padding in front."""
    start = -(-(size - reach) // stride) * stride
    return max(start + reach - size, 0) if start < size - pads[1] else 0


def max_pool(call: Call) -> Array:
    """MaxPool of ONNX: the largest stored value; padding never wins."""
    data = call.raw()
    dtype = call.results[0].dtype
    lowest = integer_range(dtype)[0] if "int" in dtype else -np.inf
    windows = _windows(call, channels_last(call, data), lowest)
    largest = windows.max(axis=tuple(range(-len(call["kernel_shape"]), 0)))
    return activated_stored(call, channels_first(call, largest))


def average_pool(call: Call) -> Result:
    """AveragePool of ONNX, where only the padding that `pads` names may count.

    `ties` rounds x.5 of the stored integers where both sides have one quantization.
    """
    data, quantization = channels_last(call, call.raw()), call.quantization()
    axes = tuple(range(-len(call["kernel_shape"]), 0))
    ones = np.ones((1, *data.shape[1:-1], 1), np.int64)
    count = _windows(call, ones, 0, call["count_include_pad"]).sum(axis=axes)
    if quantization is None:
        total = _windows(call, data.astype(np.float64), 0.0).sum(axis=axes)
        return activated(channels_first(call, total / count), call["activation"])
    zero_point, scale = int(quantization.zero_point[0]), float(quantization.scale[0])
    total = _windows(call, data.astype(np.int64) - zero_point, 0).sum(axis=axes)
    real = activated(channels_first(call, total / count * scale), call["activation"])
    if call["ties"] == "even" or call.results[0].quantization != quantization:
        return real
    average = average_up if call["ties"] == "up" else average_away
    # "Away" is from the stored zero of the signed type, which uint8 storage holds as 128.
    zero = 128 if call.results[0].dtype == "uint8" else 0
    stored_average = average(total + (zero_point - zero) * count, count) + zero
    stored = saturate(channels_first(call, stored_average), call.results[0].dtype)
    return ExactResult(real, activated_stored(call, stored))


def global_average_pool(call: Call) -> Array:
    """GlobalAveragePool of ONNX: the mean over all spatial dimensions."""
    steps, scale = call.factor(0)
    axes = tuple(spatial_axes(call, steps.ndim))
    return np.asarray(steps.mean(axis=axes, keepdims=True) * scale)


def global_max_pool(call: Call) -> Array:
    """GlobalMaxPool of ONNX: the largest stored value over all spatial dimensions."""
    data = call.raw()
    return np.asarray(data.max(axis=tuple(spatial_axes(call, data.ndim)), keepdims=True))


def resize(call: Call) -> Array:
    """Resize of ONNX to given sizes, linear or nearest, one spatial dimension after the other."""
    steps, scale = call.factor(0)
    whole = Fraction(1)
    for axis, size in zip(spatial_axes(call, steps.ndim), call.ints(1), strict=True):
        numerators, denominator = _positions(call["coordinate_transformation_mode"], steps.shape[axis], size)
        if call["mode"] == "nearest":
            chosen = _nearest(call["nearest_mode"], numerators, denominator)
            steps = steps.take(np.clip(chosen, 0, steps.shape[axis] - 1), axis)
        elif call["mode"] == "linear":
            steps = _interpolate(steps, axis, numerators, denominator)
            whole *= denominator
        else:
            raise UnsupportedError(f"the resize mode {call['mode']!r}", where=str(call.op))
    return np.asarray(steps / float(whole) * scale)


def _positions(mode: str, size: int, wanted: int) -> tuple[Array, int]:
    """Where each output position lies in the input: whole numerators over one denominator, so that ties are exact."""
    at = np.arange(wanted, dtype=np.int64)
    if mode == "asymmetric":
        return at * size, wanted
    if mode in ("half_pixel", "half_pixel_symmetric") or (mode == "pytorch_half_pixel" and wanted > 1):
        return (2 * at + 1) * size - wanted, 2 * wanted
    if mode == "tf_half_pixel_for_nn":
        return (2 * at + 1) * size, 2 * wanted
    if mode in ("align_corners", "pytorch_half_pixel"):
        return (at * (size - 1), wanted - 1) if wanted > 1 else (at, 1)
    raise UnsupportedError(f"the coordinate transformation {mode!r}")


def _nearest(mode: str, numerators: Array, denominator: int) -> Array:
    """Positions rounded to whole ones, by ONNX's nearest_mode."""
    rounded = {
        "floor": (numerators, denominator),
        "ceil": (numerators + denominator - 1, denominator),
        "round_prefer_ceil": (2 * numerators + denominator, 2 * denominator),
        "round_prefer_floor": (2 * numerators + denominator - 1, 2 * denominator),
    }
    above, below = rounded[mode]
    return np.asarray(above // below)


def _interpolate(values: Array, axis: int, numerators: Array, denominator: int) -> Array:
    """Linear interpolation along an axis, times the denominator; outside the input its edge continues."""
    lower = numerators // denominator
    shape = [-1 if i == axis else 1 for i in range(values.ndim)]
    weight = (numerators - lower * denominator).reshape(shape).astype(np.float64)
    last = values.shape[axis] - 1
    below, above = (values.take(np.clip(index, 0, last), axis) for index in (lower, lower + 1))
    return np.asarray(below * (denominator - weight) + above * weight)


FUNCTIONS: dict[str, Function] = {
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "Resize": resize,
}
