"""Kernels that compute in float32 between dequantize and quantize: onnxruntime's, for operators without a kernel of integers and for the
tables of 256 entries that it has for functions of bytes; and MNN's.

Measured with onnxruntime 1.31 on x86-64 with fused multiply-add, and MNN 3.6.1: no element differs (tests/test_float_kernels.py).
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
