"""The formulas of TVM's quantized dialect, relay.qnn, as its documentation and sources state them (relay/qnn/op/*.cc, relay/qnn/utils.cc).

Written in integers of Python and numpy, with nothing of qconvert, as golden values for test_qnn.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
F32 = np.float32
_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1)}


def clamp(values: Array, dtype: str) -> Array:
    return np.clip(values, *_RANGES[dtype]).astype(dtype)


def half_away(x: Array) -> Array:
    return np.trunc(x + np.copysign(np.asarray(0.5, np.asarray(x).dtype), x))


def fixed_multiply(x: Array, multiplier: float, rounding: str = "UPWARD") -> Array:
    """GetFixedPointMultiplierShift and FixedPointMultiply or FixedPointMultiplyToNearest: int64, one shift."""
    mantissa, exponent = math.frexp(multiplier)
    significand = math.floor(mantissa * 2**31 + 0.5)
    if significand == 2**31:
        significand, exponent = significand // 2, exponent + 1
    product = (np.asarray(x, np.int64) << max(exponent, 0)) * significand
    shift = 31 + max(-exponent, 0)
    half = np.int64(1) << (shift - 1)
    return (product + (half if rounding == "UPWARD" else np.where(product >= 0, half, half - 1))) >> shift


def qnn_requantize(
    data: Array, given: tuple[Any, Any], output: tuple[float, int], dtype: str, rounding: str = "UPWARD", axis: int = -1
) -> Array:
    """qnn.requantize with compute_dtype int64."""
    scales = np.atleast_1d(np.asarray(given[0], F32))
    steps = data.astype(np.int64) - given[1]
    parts = np.split(steps, len(scales), axis) if len(scales) > 1 else [steps]
    multipliers = [float(scale) / float(F32(output[0])) for scale in scales]
    scaled = [part if m == 1 else fixed_multiply(part, m, rounding) for part, m in zip(parts, multipliers, strict=True)]
    return clamp(np.concatenate(scaled, axis) + output[1] if len(scaled) > 1 else scaled[0] + output[1], dtype)


def qnn_requantize_float(data: Array, given: tuple[float, int], output: tuple[float, int], dtype: str, rounding: str, real: Any) -> Array:
    """qnn.requantize with compute_dtype float32 or float64: the zero point is added before the rounding."""
    multiplier = real(float(F32(given[0])) / float(F32(output[0])))
    value = (data.astype(real) - real(given[1])) * multiplier + real(output[1])
    return clamp((np.floor(value + real(0.5)) if rounding == "UPWARD" else half_away(value)).astype(np.int64), dtype)


def qnn_quantize(x: Array, scale: Any, zero_point: Any, dtype: str) -> Array:
    return clamp(half_away(x / np.asarray(scale, F32)).astype(np.int64) + zero_point, dtype)


def qnn_dequantize(data: Array, scale: Any, zero_point: Any) -> Array:
    return (data.astype(np.int64) - zero_point).astype(F32) * np.asarray(scale, F32)


def qnn_conv2d(x: Array, w: Array, x_zero: int, w_zero: int, pad: int) -> Array:
    """NCHW and OIHW; padding has the zero point of the data, so that it adds nothing."""
    data = np.pad(x.astype(np.int64) - x_zero, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    kernel = w.astype(np.int64) - w_zero
    rows, columns = data.shape[2] - kernel.shape[2] + 1, data.shape[3] - kernel.shape[3] + 1
    total = np.zeros((len(data), len(kernel), rows, columns), np.int64)
    for i in range(kernel.shape[2]):
        for j in range(kernel.shape[3]):
            total += np.einsum("nchw,oc->nohw", data[:, :, i : i + rows, j : j + columns], kernel[:, :, i, j])
    return total


def qnn_conv2d_transpose(x: Array, w: Array, x_zero: int, w_zero: int, stride: int) -> Array:
    """NCHW and IOHW, without padding."""
    data, kernel = x.astype(np.int64) - x_zero, w.astype(np.int64) - w_zero
    rows, columns = ((size - 1) * stride + taps for size, taps in zip(data.shape[2:], kernel.shape[2:], strict=True))
    total = np.zeros((len(data), kernel.shape[1], rows, columns), np.int64)
    for i in range(data.shape[2]):
        for j in range(data.shape[3]):
            part = np.einsum("nc,cohw->nohw", data[:, :, i, j], kernel)
            total[:, :, i * stride : i * stride + kernel.shape[2], j * stride : j * stride + kernel.shape[3]] += part
    return total


def qnn_add(a: Array, b: Array, quantizations: Sequence[tuple[float, int]], output: tuple[float, int], dtype: str, sign: int = 1) -> Array:
    """Both operands on the result's quantization as int32, each rounded by itself; then the sum or the difference."""
    x, y = (
        qnn_requantize(data, quantization, output, "int32").astype(np.int64)
        for data, quantization in zip((a, b), quantizations, strict=True)
    )
    return clamp(x + y - output[1] if sign > 0 else x - y + output[1], dtype)


def qnn_mul(a: Array, b: Array, quantizations: Sequence[tuple[float, int]], output: tuple[float, int], dtype: str) -> Array:
    product = (a.astype(np.int64) - quantizations[0][1]) * (b.astype(np.int64) - quantizations[1][1])
    return qnn_requantize(product, (F32(quantizations[0][0]) * F32(quantizations[1][0]), 0), output, dtype)


def qnn_leaky_relu(data: Array, alpha: float, given: tuple[float, int], output: tuple[float, int], dtype: str) -> Array:
    """The data on the result's quantization; where negative alpha times that, plus (1 - alpha) times its zero point."""
    moved = qnn_requantize(data, given, output, "int32").astype(np.int64)
    low = fixed_multiply(moved, alpha) + fixed_multiply(np.array(output[1]), 1 - alpha)
    return clamp(np.where(data < given[1], low, moved), dtype)


def qnn_softmax(data: Array, given: tuple[float, int], output: tuple[float, int]) -> Array:
    """The shift-based exponential of I-ViT (arXiv 2207.01405, algorithm 1), 8 bits."""
    one = int(np.rint(F32(1) / F32(given[0])))
    x = data.astype(np.int64) - given[1]
    x = x - x.max(axis=-1, keepdims=True)
    scaled = x + (x >> 1) - (x >> 4)
    times = -scaled // one
    rest = scaled + times * one
    raised = ((rest >> 1) + one) << (8 - times)
    shares = (((1 << 30) // raised.sum(axis=-1, keepdims=True)) * raised) >> 23
    return qnn_requantize(shares, (1 / 128, 0), output, "int8")


def qnn_avg_pool2d(data: Array, given: tuple[float, int], output: tuple[float, int], dtype: str, size: int) -> Array:
    """On the result's quantization as int32; sums divided towards zero."""
    moved = qnn_requantize(data, given, output, "int32").astype(np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(moved, (size, size), axis=(2, 3)).sum(axis=(-2, -1))
    return clamp(np.trunc(windows / (size * size)).astype(np.int64), dtype)
