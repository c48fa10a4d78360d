"""The int8 convolutions of MNN on x86-64, and what biases of depthwise ones are changed to for them.

Source: CPUConvolution.cpp (updateInputOutputScale), GemmInt8_VNNI.cpp, CPUDepthwiseConvInt8.cpp. MNN stores data as integer + 128, so that
a sum has 128 times the sum of the weights too; what the zero points add is taken off in float32, or as integers in depthwise kernels.
Measured with MNN 3.6.1 on a CPU with AVX-512 VNNI (tests/runtimes/test_mnn_layers.py): no element differs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array, Quantization

#: What MNN adds to data, to make bytes without a sign of it.
_OFFSET = 128
#: The least scale of weights in depthwise kernels.
_LEAST_SCALE = np.float32(1e-6)
#: Of a unit, by which biases are farther from zero than the whole numbers that they stand for, since MNN cuts them off.
_ABOVE = 0.25


def compensate_mnn_bias(bias: Array, data: float, weights: Array, result: float, zero_point: int) -> tuple[Array, Array]:
    """Return the float32 bias of a depthwise layer that makes up for what MNN cuts off, and by how many whole units each is changed.

    Args:
        bias: float values, one for each channel.
        data, weights, result: scales.
        zero_point: of the result, which MNN adds to the sum as trunc(zero point / unit).
    """
    step = np.float64(data) * weights.astype(np.float64)
    wanted = zero_point / (data * weights.astype(np.float64) / result)
    units = np.asarray(np.rint(wanted) - np.trunc(wanted))
    whole = np.rint(bias / step) + units
    return ((whole + _ABOVE * np.sign(whole)) * step).astype(np.float32), units


def mnn_convolution(total: Array, sums: Array, bias: Array, given: Quantization, weights: Array, output: Quantization) -> Array:
    """Return the stored results of a convolution, not clipped.

    Args:
        total: sums of products of steps of the data and weights, channels along axis 1.
        sums: of the weights of each channel.
        bias: float32, one for each channel.
        given, output: quantizations, per tensor.
        weights: their scales, one for each channel.
    """
    along = (-1, *(1,) * (total.ndim - 2))
    first, last = np.float32(given.scale[0]), np.float32(output.scale[0])
    offset = given.point + _OFFSET
    added = (bias - sums.astype(np.float32) * weights * np.float32(offset) * first) / last + np.float32(output.zero_point[0])
    sum_of_bytes = (total + (offset * sums).reshape(along)).astype(np.float32)
    return _round_away(sum_of_bytes * weights.reshape(along) * (first / last) + added.reshape(along))


def mnn_depthwise(total: Array, bias: Array, given: Quantization, weights: Array, output: Quantization) -> Array:
    """Return the stored results of a depthwise convolution, not clipped; see mnn_convolution()."""
    along = (-1, *(1,) * (total.ndim - 2))
    weights = np.maximum(weights, _LEAST_SCALE)
    first, last = np.float32(given.scale[0]), np.float32(output.scale[0])
    scale = weights * (first / last)
    added = np.trunc(bias / (first * weights)) + np.trunc(np.float32(output.zero_point[0]) / scale)
    return _round_away((total + added.astype(np.int64).reshape(along)).astype(np.float32) * scale.reshape(along))


def _round_away(values: Any) -> Array:
    """float32 rounded to whole numbers, ties away from zero."""
    return np.asarray(np.trunc(values + np.where(values < 0, np.float32(-0.5), np.float32(0.5))))
