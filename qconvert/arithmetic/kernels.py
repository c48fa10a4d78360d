"""Operators on 8-bit data whose kernels have arithmetic of their own: additions, leaky ReLU, averages, softmax, means, comparisons.

Sums and means were measured equal to LiteRT's (tests/test_arithmetic.py).

And kernels that compute in float32 between dequantize and quantize: onnxruntime's, for operators without a kernel of integers and for the
tables of 256 entries that it has for functions of bytes; and MNN's, with its int8 convolutions on x86-64, and what biases of depthwise ones
are changed to for them. Measured with onnxruntime 1.31 on x86-64 with fused multiply-add, and MNN 3.6.1: no element differs
(tests/test_float_kernels.py).

Source of MNN's: CPUConvolution.cpp (updateInputOutputScale), GemmInt8_VNNI.cpp, CPUDepthwiseConvInt8.cpp. MNN stores data as integer + 128,
so that a sum has 128 times the sum of the weights too; what the zero points add is taken off in float32, or as integers in depthwise
kernels. Measured on a CPU with AVX-512 VNNI (tests/runtimes/test_mnn_layers.py): no element differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic.fixed_point_functions import clip_to_width
from qconvert.arithmetic.requantize import (
    high_product,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    rounding_divide_by_pot,
    shift_half_up,
    short_multipliers,
)
from qconvert.arithmetic.rounding import fused_multiply_add, round_half_away, round_half_even, saturate
from qconvert.arithmetic.storage import Array, Quantization, integer_range

#: Of the larger multiplier of an addition.
XNNPACK_ADD_BITS = 20


def xnnpack_add(a: Any, b: Any, inputs: tuple[Quantization, Quantization], output: Quantization, dtype: str) -> Array:
    """ADD of XNNPACK, 8 bits: multipliers of 20 bits and one shift with ties up.

    Source: xnn_init_qs8_add_minmax_scalar_params. Args: stored integers and per-tensor quantizations.
    """
    multipliers, shift = add_multipliers(inputs, output, XNNPACK_ADD_BITS)
    return saturate(shift_half_up(multiply_and_add(a, b, inputs, multipliers), shift) + output.zero_point[0], dtype)


def has_xnnpack_add(inputs: tuple[Quantization, Quantization], output: Quantization) -> bool:
    """Whether XNNPACK has an addition on these scales: both ratios to the output's are in [2**-10, 2**8).

    Source: xnn_create_add_nd_qs8; TFLite's delegate leaves other additions to the kernels of TFLite itself.
    """
    return all(2.0**-10 <= item.step / output.step < 2.0**8 for item in inputs)


def add_multipliers(inputs: tuple[Quantization, Quantization], output: Quantization, bits: int) -> tuple[tuple[int, int], int]:
    """The integer multipliers of both inputs of an addition, the larger one of so many bits, and the right shift of their sum."""
    ratios = [np.float32(item.scale[0]) / np.float32(output.scale[0]) for item in inputs]
    shift = bits - int(np.floor(np.log2(max(ratios))))
    first, second = (int(np.rint(float(ratio) * 2.0**shift)) for ratio in ratios)
    return (first, second), shift


def multiply_and_add(a: Any, b: Any, inputs: tuple[Quantization, Quantization], multipliers: tuple[int, int]) -> Array:
    """The sum of the steps of two inputs, each times its multiplier."""
    total: Array = np.zeros((), np.int64)
    for stored, item, multiplier in zip((a, b), inputs, multipliers, strict=True):
        total = total + (np.asarray(stored, np.int64) - item.zero_point[0]) * multiplier
    return total


def onnxruntime_add(a: Any, b: Any, inputs: tuple[Quantization, Quantization], output: Quantization, dtype: str) -> Array:
    """QLinearAdd of onnxruntime on CPUs with fused multiply-add: b, then a, onto the zero points' part, in float32.

    Source: MlasQLinearAdd (mlas/lib/qladd.cpp). Measured equal on all 65,536 pairs of 33 additions of real models.
    """
    ratios = [np.float32(item.scale[0]) / np.float32(output.scale[0]) for item in inputs]
    zeros = [np.float32(item.zero_point[0]) for item in (*inputs, output)]
    fixed = zeros[2] - fused_multiply_add(ratios[0], zeros[0], ratios[1] * zeros[1])
    inner = fused_multiply_add(np.asarray(b, np.float32), ratios[1], fixed)
    return saturate(np.rint(fused_multiply_add(np.asarray(a, np.float32), ratios[0], inner)), dtype)


def xnnpack_requantize(stored: Any, source: Quantization, output: Quantization, dtype: str) -> Array:
    """QUANTIZE from 8 to 8 bits in XNNPACK (vcvt): 8 fractional bits and a shift with ties up."""
    return xnnpack_leaky_relu(stored, source, output, dtype, 1.0)


def xnnpack_leaky_relu(stored: Any, source: Quantization, output: Quantization, dtype: str, alpha: float) -> Array:
    """LEAKY_RELU in XNNPACK (vlrelu), 8 bits: 8 fractional bits for either sign, a shift with ties up.

    Args: stored integers, per-tensor quantizations, and the slope for negative values.
    """
    steps = np.asarray(stored, np.int64) - source.zero_point[0]
    positive = np.float32(source.scale[0]) / np.float32(output.scale[0])
    negative = positive * np.float32(alpha)
    multiplier = np.where(steps < 0, int(np.rint(256 * negative)), int(np.rint(256 * positive)))
    return saturate(shift_half_up(steps * multiplier, 8) + output.zero_point[0], dtype)


def tflite_hard_swish(stored: Any, source: Quantization, output: Quantization, dtype: str, precision: str = "float32") -> Array:
    """HARD_SWISH of bytes in TFLite: x * relu6(x + 3) / 6 in 16 bits (reference_ops.h, HardSwish; activations.cc, HardSwishPrepare).

    Args:
        stored, source, output, dtype: as of xnnpack_requantize().
        precision: in which scales are divided, of tflite-micro "float64" (measured).
    """
    fine = (np.float32(1 / 128) * np.float32(source.scale[0])).astype(precision)
    factor, shift = _short_multiplier(float(fine / np.float32(output.scale[0]).astype(precision)))
    slope, exponent = _short_multiplier(float(fine / np.float32(3 / 32768).astype(precision)))
    steps = (np.asarray(stored, np.int64) - source.zero_point[0]) << 7
    value = clip_to_width(high_product(steps, factor, 15))
    gate = clip_to_width(steps << max(exponent - 1, 0)) if exponent > 0 else steps
    gate = clip_to_width(high_product(gate, slope, 15))
    gate = clip_to_width(gate << 1) if exponent > 0 else rounding_divide_by_pot(gate, -exponent) if exponent < 0 else gate
    product = ((np.asarray(gate, np.int64) + 2**15) >> 1) * value
    product = clip_to_width(np.sign(product) * (np.abs(product) >> 15))  # SaturatingDoublingHighMul cuts off
    return saturate(rounding_divide_by_pot(product, -shift) + output.zero_point[0], dtype)


def _short_multiplier(factor: float) -> tuple[int, int]:
    """A multiplier of 16 bits and its shift to the left (quantization_util.cc; DownScaleInt32ToInt16Multiplier)."""
    multiplier, right = short_multipliers(factor)
    return int(multiplier), 15 - int(right)


def sum_exponentials(scale: np.float32, below: Array) -> tuple[Array, Array]:
    """Return exp(scale * below) of float32 by a table of 256, and its sums along the last axis, one element after the other.

    Source: PopulateSoftmaxLookupTable and Softmax (optimized_ops.h).

    Args:
        scale: of the data, and a beta.
        below: how far stored integers are below the largest along the last axis, as numbers from 0 to -255.
    """
    found = exponential_table(scale)[-below]
    return found, np.add.accumulate(found, axis=-1, dtype=np.float32)[..., -1:]


def exponential_table(scale: np.float32) -> Array:
    """Return exp(-scale * n) as float32, for n from 0 to 255."""
    return np.asarray(np.exp((-scale * np.arange(256, dtype=np.float32)).astype(np.float64)).astype(np.float32))


def softmax_steps(steps: Array, scale: np.float32, output: np.float32, axis: int) -> Array:
    """Return the steps of TFLite's optimized SOFTMAX of bytes, in float32 (optimized_ops.h, Softmax).

    Args:
        steps: of the data, int64, from any zero point.
        scale: of the data times beta.
        output: scale of the result.
        axis: of the sums.
    """
    moved = np.moveaxis(steps, axis, -1)
    found, sums = sum_exponentials(scale, moved - moved.max(axis=-1, keepdims=True, initial=np.iinfo(np.int64).min))
    return np.moveaxis(round_half_away(found * (np.float32(1) / (sums * output))), -1, axis).astype(np.int64)


def average_away(total: Any, count: Any) -> Array:
    """total / count, ties away from the stored zero: TFLite's AVERAGE_POOL_2D for int8 and int16."""
    total, count = np.asarray(total, np.int64), np.asarray(count, np.int64)
    return np.asarray(np.sign(total) * ((np.abs(total) + count // 2) // count))


def average_up(total: Any, count: Any) -> Array:
    """total / count, ties up: TFLite's AVERAGE_POOL_2D for uint8, whose sums are never negative."""
    total, count = np.asarray(total, np.int64), np.asarray(count, np.int64)
    return np.asarray((total + count // 2) // count)


def onnxruntime_softmax(values: Array, scale: float, output: Quantization, dtype: str, axis: int) -> tuple[tuple[Array, Array], bool]:
    """QLinearSoftmax of 8 bits (qlinear_softmax.cc) before onnxruntime 1.32 and since, and whether the float32 of the former overflows.

    The largest entry of its table of exponentials is e^-5 * (largest float32) / size. The product of an entry and floor(1 / output scale)
    is exact since 1.32. Before, it is rounded to float32, which decides ties, and infinite for one element. C does not define the integer
    of infinity: on x86 it is 0 of uint8, and -2^31 of int8. The logarithm of (largest float32) / size is a float32, which decides ties of
    equal elements.

    Args:
        values: stored integers.
        scale: of the data.
        output: quantization of the result, per tensor.
        dtype: of the result, and of the data.
        axis: of the sums.
    """
    steps = np.moveaxis(values.astype(np.int64), axis, -1)
    size = steps.shape[-1]
    first = max(0.0, float(np.float32(math.log(np.finfo(np.float32).max / np.float32(size)))) - 5) / scale
    table = np.exp((np.arange(256) - 255 + first) * scale).astype(np.float32)
    terms = table[np.clip(255 + steps - steps.max(axis=-1, keepdims=True), 0, 255)]
    total = np.add.accumulate(terms, axis=-1, dtype=np.float32)[..., -1:]
    most = np.floor(np.float32(1) / np.float32(output.scale[0]))
    with np.errstate(over="ignore", invalid="ignore"):
        shares = np.rint(terms * most / total)
    finite, lowest = np.isfinite(shares), 0 if dtype == "uint8" else -(2**31)
    whole = np.where(finite, shares, lowest).astype(np.int64) + output.point
    whole = np.where(whole < -(2**31), whole + 2**32, whole)
    exact = np.rint(terms.astype(np.float64) * most / total) + output.point
    before, since = (np.moveaxis(saturate(found, dtype), -1, axis) for found in (whole, exact))
    return (before, since), not finite.all()


def xnnpack_reduction(given: Quantization, output: Quantization, count: int, is_mean: bool) -> tuple[np.float32, np.float32]:
    """What XNNPACK multiplies the sum of stored integers by, and what it adds then; each is rounded to float32 on its way.

    Source: XNNPACK, the operators static_reduce (a sum of int32, made a float32) and convert; the order of the products was found by
    sums for which it decides.

    Args:
        given, output: quantizations.
        count: how many integers are summed.
        is_mean: whether the sum is divided by it.
    """
    share = np.float32(1) / np.float32(count) if is_mean else np.float32(1)
    factor = np.float32(share * np.float32(given.scale[0] / output.scale[0]))
    zero = np.float32(np.float32(count * given.point) * factor)
    return factor, np.float32(np.float32(output.point) - zero)


def xnnpack_reduce(total: Any, count: int, is_mean: bool, given: Quantization, output: Quantization, dtype: str) -> Array:
    """Stored results of XNNPACK's MEAN and SUM of 8-bit data: float32, ties to even of the integer with its zero point.

    Args:
        total: sums of stored integers.
        count, is_mean, given, output: as in xnnpack_reduction().
        dtype: of data and result.
    """
    factor, offset = xnnpack_reduction(given, output, count, is_mean)
    steps = np.asarray(total).astype(np.float32) * factor + offset
    return saturate(round_half_even(steps.astype(np.float64)).astype(np.int64), dtype)


def tflite_mean_multiplier(given: Quantization, output: Quantization, count: int) -> tuple[int, int]:
    """(integer below 2**31, shift), the shift being to the right if it is negative: TFLite's multiplier of a mean.

    Source: QuantizedMeanOrSum (reference/reduce.h): the multiplier of the scales is divided by the count, cut off, with as many bits gained
    as the count has.
    """
    fixed, exponent = (int(item) for item in quantize_multiplier(given.step / output.step))
    gained = min(count.bit_length() - 1, 32, 31 + exponent)
    return (fixed << gained) // count, exponent - gained


#: The steps of a real 1 in which the kernels compare, as a shift.
_SHIFT = 8


def tflite_comparison_tables(quantization: Quantization, dtype: str) -> tuple[Array, ...]:
    """The number, int32, that EQUAL, LESS … compare for each stored integer, the lowest first; two such tables where C leaves it undefined.

    Scales from 1 on ask for a shift to the right by less than none. What LiteRT gives then on x86 is hardly more than the sign
    (MultiplyByQuantizedMultiplierSmallerThanOneExp in comparisons.cc, RoundingDivideByPOT in gemmlowp's fixedpoint.h), as vectors of
    integers are shifted by all of it. The last elements, which fill no vector of 8, are shifted by it modulo 32: the second table, other
    than the first from 2**16 on.

    Args:
        quantization: per tensor.
        dtype: "int8" or "uint8".
    """
    low, high = integer_range(dtype)
    steps = (np.arange(low, high + 1) - quantization.point) << _SHIFT
    multiplier, shift = (int(item) for item in quantize_multiplier(quantization.step))
    if shift <= 0:
        return (np.asarray(multiply_by_quantized_multiplier(steps, multiplier, shift)).astype(np.int32),)
    scaled = high_product(steps, multiplier)
    mask = int(np.int64((1 << (-shift % 64)) - 1).astype(np.int32))
    rounded = (scaled & mask) > ((mask >> 1) + (scaled < 0))
    return tuple(np.asarray((scaled >> count) + rounded).astype(np.int32) for count in (31, -shift % 32))


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
LEAST_MNN_SCALE = np.float32(1e-6)
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
    weights = np.maximum(weights, LEAST_MNN_SCALE)
    first, last = np.float32(given.scale[0]), np.float32(output.scale[0])
    scale = weights * (first / last)
    added = np.trunc(bias / (first * weights)) + np.trunc(np.float32(output.zero_point[0]) / scale)
    return _round_away((total + added.astype(np.int64).reshape(along)).astype(np.float32) * scale.reshape(along))


def _round_away(values: Any) -> Array:
    """float32 rounded to whole numbers, ties away from zero."""
    return np.asarray(np.trunc(values + np.where(values < 0, np.float32(-0.5), np.float32(0.5))))
