"""Kernels that compute in float32 between dequantize and quantize: onnxruntime's, for operators without a kernel of integers and for the
tables of 256 entries that it has for functions of bytes; and MNN's, with its int8 convolutions on x86-64, and what biases of depthwise ones
are changed to for them.

Measured with onnxruntime 1.31 on x86-64 with fused multiply-add, and MNN 3.6.1: no element differs (tests/test_float_kernels.py).

Source of MNN's: CPUConvolution.cpp (updateInputOutputScale), GemmInt8_VNNI.cpp, CPUDepthwiseConvInt8.cpp. MNN stores data as integer + 128,
so that a sum has 128 times the sum of the weights too; what the zero points add is taken off in float32, or as integers in depthwise
kernels. Measured on a CPU with AVX-512 VNNI (tests/runtimes/test_mnn_layers.py): no element differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic.rounding import fused_multiply_add
from qconvert.arithmetic.storage import Array, Quantization

#: The largest and the smallest steps that become integers; others are clipped to the type anyway.
_MOST = 2.0**31


def dequantize_float32(stored: Any, quantization: Quantization) -> Array:
    """DequantizeLinear: the float32 product of whole steps and the scale. Args: stored integers, one scale and zero point."""
    steps = np.asarray(stored, np.int64) - quantization.point
    return np.asarray(steps.astype(np.float32) * np.float32(quantization.scale[0]))


def quantize_float32(values: Array, quantization: Quantization, by_reciprocal: bool = False) -> Array:
    """QuantizeLinear (MlasQuantizeLinear, mlas/lib/quantize.cpp): float32 divided by the scale, ties to even, then the zero point.

    Args:
        values: float32.
        quantization: with one scale and zero point.
        by_reciprocal: whether the scale's reciprocal, rounded to float32, multiplies instead (MNN).

    Returns:
        Integers as float64, not clipped to a type.
    """
    scale = np.float32(quantization.scale[0])
    with np.errstate(all="ignore"):
        steps = (values * (np.float32(1) / scale) if by_reciprocal else values / scale).astype(np.float64)
    return np.asarray(np.rint(np.clip(steps, -_MOST, _MOST)) + quantization.point)


def _polynomial(squares: Array, coefficients: Sequence[float]) -> Array:
    """Coefficients of falling powers, each added by a fused multiply-add."""
    found = np.full(squares.shape, coefficients[0], np.float32)
    for coefficient in coefficients[1:]:
        found = fused_multiply_add(found, squares, np.float32(coefficient))
    return found


def onnxruntime_sigmoid(x: Array) -> Array:
    """Sigmoid of float32 as a quotient of polynomials (MlasComputeLogistic, mlas/lib/logistic.cpp)."""
    x = np.clip(x, np.float32(-18), np.float32(18))
    squares = x * x
    above = _polynomial(squares, _SIGMOID_ABOVE) * x
    return np.asarray(np.clip(above / _polynomial(squares, _SIGMOID_BELOW) + np.float32(0.5), np.float32(0), np.float32(1)))


def onnxruntime_tanh(x: Array) -> Array:
    """Tanh of float32 as a quotient of polynomials (MlasComputeTanh, mlas/lib/tanh.cpp)."""
    x = np.clip(x, np.float32(-9), np.float32(9))
    squares = x * x
    return np.asarray(_polynomial(squares, _TANH_ABOVE) * x / _polynomial(squares, _TANH_BELOW))


_SIGMOID_ABOVE = (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01)
_SIGMOID_BELOW = (
    6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03, 1.16817656904453e-01, 9.93151921023180e-01,
)  # fmt: skip
_TANH_ABOVE = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04,
    4.89352455891786e-03,
)  # fmt: skip
_TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


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
