"""PyTorch's own quantized kernels of uint8 data: biases and additions of its engines, averages, and torch.quantize_per_tensor.

Measured with PyTorch 2.13 on x86-64 (tests/runtimes/test_torch_engines.py): no element differs. Sources: aten/src/ATen/native/quantized/cpu
(BinaryOps.cpp, AveragePool2d.cpp, AdaptiveAveragePooling.cpp, kernels/QuantizedOpKernels.cpp, qnnpack/src/add.c and q8avgpool).
torch.quantize_per_tensor is round(fma(x, 1 / scale, zero point)); it has a form in plain float32 operators too. ONNX and TFLite round x /
scale and add the zero point after that. The fused sum is rounded to float32 first: a value within half a last place of a tie (2^-17 from
128 on) becomes the tie, which goes to the even integer, not to the even number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic.kernels import add_multipliers, multiply_and_add
from qconvert.arithmetic.rounding import fused_multiply_add, saturate
from qconvert.arithmetic.storage import Array, Quantization, integer_range

_Sizes = Sequence[Any]
#: Sums that averaging_scale() looks at, in order to find a scale.
_MOST_SUMS = 2**22
_NEIGHBOURS = 4


def qnnpack_bias(bias: Array, scale: Any) -> Array:
    """The integers, as float64, that qnnpack makes of a real bias.

    Args:
        bias: float32.
        scale: of the accumulator, the float32 product of both scales.
    """
    with np.errstate(all="ignore"):
        return np.asarray(np.rint(bias * (np.float32(1) / np.asarray(scale, np.float32)))).astype(np.float64)


def has_qnnpack_add(inputs: tuple[Quantization, Quantization], output: Quantization) -> bool:
    """Whether qnnpack has an addition on these scales: both ratios to the output's are in [2**-14, 2**8). It refuses others."""
    return all(2.0**-14 <= item.step / output.step < 2.0**8 for item in inputs)


#: Of the larger multiplier of an addition.
QNNPACK_ADD_BITS = 21


def qnnpack_add(a: Any, b: Any, inputs: tuple[Quantization, Quantization], output: Quantization, dtype: str) -> Array:
    """quantized::add of qnnpack: multipliers of 21 bits and one shift, ties away from zero.

    Args: stored integers and per-tensor quantizations.
    """
    multipliers, shift = add_multipliers(inputs, output, QNNPACK_ADD_BITS)
    total = multiply_and_add(a, b, inputs, multipliers)
    steps = np.sign(total) * ((np.abs(total) + (1 << (shift - 1))) >> shift)
    return saturate(steps + output.zero_point[0], dtype)


def fbgemm_add(a: Any, b: Any, inputs: tuple[Quantization, Quantization], output: Quantization, dtype: str) -> Array:
    """quantized::add of the other engines: dequantized by fused multiply-add, added and scaled in float32, ties to even.

    Args: stored integers and per-tensor quantizations; integers of int8 are taken as uint8 with another zero point.
    """
    low = integer_range(dtype)[0]
    values = [
        fused_multiply_add(
            np.asarray(stored, np.int64) - low, item.scale[0], -(np.float32(item.zero_point[0] - low) * np.float32(item.scale[0]))
        )
        for stored, item in zip((a, b), inputs, strict=True)
    ]
    steps = (values[0] + values[1]) * (np.float32(1) / np.float32(output.scale[0]))
    return saturate(np.rint(steps).astype(np.float64) + output.zero_point[0], dtype)


def _steps(total: Array, quantization: Quantization, sizes: _Sizes) -> Array:
    """Sums as whole steps from the zero point, in float32."""
    return np.asarray((total - math.prod(sizes) * quantization.point).astype(np.float32))


def _count(sizes: _Sizes) -> Any:
    return np.asarray(math.prod(sizes)).astype(np.float32)


def _reciprocal(sizes: _Sizes) -> Any:
    """1 / size, divided by one axis after the other."""
    return np.float32(1) / np.float32(sizes[0]) if len(sizes) == 1 else _reciprocal(sizes[:-1]) / np.float32(sizes[-1])


def _qnnpack(total: Array, quantization: Quantization, sizes: _Sizes) -> Array:
    factor = quantization.scale[0] / (quantization.scale[0] * _count(sizes))
    return np.asarray(np.rint(_steps(total, quantization, sizes) * factor) + np.float32(quantization.zero_point[0]))


def _vectors(total: Array, quantization: Quantization, sizes: _Sizes) -> Array:
    return np.asarray(
        np.rint(_steps(total, quantization, sizes) * (np.float32(1) / _count(sizes))) + np.float32(quantization.zero_point[0])
    )


def _windows(total: Array, quantization: Quantization, sizes: _Sizes) -> Array:
    return np.asarray(
        np.rint(_steps(total, quantization, sizes) * (np.float32(1) / _count(sizes)) + np.float32(quantization.zero_point[0]))
    )


def _adaptive(total: Array, quantization: Quantization, sizes: _Sizes) -> Array:
    return np.asarray(
        np.rint(fused_multiply_add(_steps(total, quantization, sizes), np.float32(1) / _count(sizes), quantization.zero_point[0]))
    )


def _frames(total: Array, quantization: Quantization, sizes: _Sizes) -> Array:
    return np.asarray(np.rint(total.astype(np.float32) * _reciprocal(sizes)))


def _means(total: Array, quantization: Quantization, sizes: _Sizes) -> Array:
    return np.asarray(np.rint(total.astype(np.float32) / _count(sizes)))


#: (sums of stored uint8 integers, quantization, sizes of a window) -> averages, by the names of the attribute `arithmetic`.
TORCH_AVERAGES: Mapping[str, Callable[[Array, Quantization, _Sizes], Array]] = {
    "qnnpack_average": _qnnpack,
    "fbgemm_windows": _windows,
    "fbgemm_vectors": _vectors,
    "fbgemm_adaptive": _adaptive,
    "fbgemm_frames": _frames,
    "fbgemm_means": _means,
}


def torch_average(name: str, total: Any, quantization: Quantization, sizes: _Sizes, dtype: str) -> Array:
    """Stored averages as PyTorch's kernels round them.

    Args:
        name: of TORCH_AVERAGES.
        total: sums of stored integers; padding counts with the zero point.
        quantization: of data and result, per tensor.
        sizes: of a window; or how many integers each is the sum of, as an array.
        dtype: of data and result; integers of int8 are taken as uint8 with another zero point.
    """
    low, count = integer_range(dtype)[0], math.prod(sizes)
    found = TORCH_AVERAGES[name](np.asarray(total, np.int64) - low * count, quantization.shift_zero_point(-low), sizes)
    return saturate(found + low, dtype)


def is_same_average(first: str, second: str, quantization: Quantization, sizes: Sequence[int], dtype: str) -> bool:
    """Whether two of TORCH_AVERAGES give the same integers for every sum; False where there are too many sums to look at.

    Args:
        first, second: of TORCH_AVERAGES.
        quantization: of data and result, per tensor.
        sizes: of a window.
        dtype: of data and result.
    """
    low, count = integer_range(dtype)[0], math.prod(sizes)
    if 255 * count >= _MOST_SUMS:
        return False
    total = np.arange(255 * count + 1) + low * count
    one, two = (torch_average(name, total, quantization, sizes, dtype) for name in (first, second))
    return bool(np.array_equal(one, two))


def averaging_scale(name: str, quantization: Quantization, sizes: Sequence[int]) -> tuple[int, float, int] | None:
    """The zero point and the scale of weights of ones with which a convolution gives torch_average() for each sum, or all but the fewest,
    and how many these are.

    An integer kernel multiplies the sum, less the zero points of the data, by data scale * weight scale / result scale in float32 and
    rounds ties to even (onnxruntime, XNNPACK, tests/passes/test_torch_rounding.py); zero point 0 makes these ties of the stored integers.

    Args:
        name: of TORCH_AVERAGES.
        quantization: of data and result in uint8, per tensor.
        sizes: of a window.

    Returns:
        None where there are too many sums to look at.
    """
    count, own = math.prod(sizes), quantization.scale[0]
    if 255 * count >= _MOST_SUMS:
        return None
    total = np.arange(255 * count + 1)
    wanted = TORCH_AVERAGES[name](total, quantization, sizes)
    found: list[tuple[int, float, int]] = []
    for zero in dict.fromkeys((quantization.point, 0)):
        for scale in _neighbours(np.float32(1) / np.float32(count)):
            factor = own * scale / own
            missed = int(np.count_nonzero(np.rint((total - count * zero).astype(np.float32) * factor) + zero != wanted))
            found.append((zero, float(scale), missed))
            if not missed:
                return found[-1]
    return min(found, key=lambda item: item[2])


def _neighbours(value: Any) -> list[Any]:
    """A float32 and its neighbours, the nearest first."""
    found, low, high = [value], value, value
    for _ in range(_NEIGHBOURS):
        low, high = np.nextafter(low, np.float32(0)), np.nextafter(high, np.float32(1))
        found += [low, high]
    return found


#: Steps that data may lie from zero, above all that any integer of 8 bits is made of.
_MOST_STEPS = 512
#: Neighbours of a limit between two integers that are tried; the form's error is below two of them.
_SPLIT_NEIGHBOURS = 6


def torch_quantize(x: Array, scale: Any, zero_point: int) -> Array:
    """Integers of uint8, as float32.

    Args:
        x: float32.
        scale: of the quantization, float32.
        zero_point: in unsigned storage, as PyTorch's kernels have it.
    """
    with np.errstate(all="ignore"):
        steps = np.rint(fused_multiply_add(x, np.float32(1) / np.float32(scale), zero_point))
    return np.asarray(np.clip(np.nan_to_num(steps, nan=0.0, posinf=255.0, neginf=0.0), 0, 255))


#: The value of `arithmetic` of a mean of dequantized numbers, see torch_mean().
FLOAT_MEAN = "dequantized"


def torch_mean(stored: Array, axes: tuple[int, ...] | None, quantization: Quantization, dtype: str, *, keepdims: bool) -> Array:
    """Stored means of data that PyTorch dequantizes first: those over other axes than the last, and of data that are not contiguous
    (mean_quantized_cpu, aten/src/ATen/native/quantized/cpu/ReduceOps.cpp).

    PyTorch adds in an order that depends on the shape. A mean next to a tie, of which the fused sum makes the tie in most cases, may
    become another integer in another order: under 1% of them (tests/runtimes/test_torch_engines.py).

    Args:
        stored: integers.
        axes: that the mean is over; None means all of them.
        quantization: of data and result, per tensor.
        dtype: of data and result; integers of int8 are taken as uint8 with another zero point.
        keepdims: whether these axes remain.
    """
    low = integer_range(dtype)[0]
    numbers = (stored.astype(np.float32) - np.float32(quantization.point)) * quantization.scale[0]
    total = np.asarray(numbers.sum(axis=axes, dtype=np.float32, keepdims=keepdims))
    means = total / np.float32(stored.size // max(total.size, 1))
    return saturate(torch_quantize(means, quantization.scale[0], quantization.point - low) + low, dtype)


class SplitProduct(NamedTuple):
    """x / scale + zero point of float32 numbers, as (high * factors[0] + zero point) + (low * reciprocal + high * factors[1]).

    `high` is x rounded to coarse steps, (x + border) - border, and `low` the rest: the first bracket is exact, the second small.

    Attributes:
        border: what is added and taken off again.
        factors: the reciprocal in two parts.
        reciprocal: of the scale.
        missed: how many float32 numbers, of all, become another integer.
    """

    border: float
    factors: tuple[float, float]
    reciprocal: float
    missed: int


def split_product(scale: Any, zero_point: int) -> SplitProduct | None:
    """The form that misses the fewest numbers, mostly none; None for scales at the ends of float32.

    Only numbers next to the limits between two integers can be missed, and these are all tried.
    """
    scale = np.float32(scale)
    if not 2.0**-80 < float(scale) < 2.0**80:
        return None
    reciprocal = np.float32(1) / scale
    tried = _next_to_limits(reciprocal, zero_point)
    wanted = torch_quantize(tried, scale, zero_point)
    mantissa, exponent = math.frexp(float(reciprocal))
    largest = math.ceil(math.log2(_MOST_STEPS / float(reciprocal)))
    found: list[SplitProduct] = []
    for bits in (12, 11, 10, 13, 9):
        for power in (largest - 12, largest - 13, largest - 11, largest - 14, largest - 10):
            first = np.float32(math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits))
            border = np.float32(math.ldexp(1.5, 23 + power))
            high = (tried + border) - border
            last = reciprocal - first
            steps = (high * first + np.float32(zero_point)) + ((tried - high) * reciprocal + high * last)
            missed = int(np.count_nonzero(np.clip(np.rint(steps), 0, 255) != wanted))
            found.append(SplitProduct(float(border), (float(first), float(last)), float(reciprocal), missed))
            if not missed:
                return found[-1]
    return min(found, key=lambda item: item.missed)


def _next_to_limits(reciprocal: Any, zero_point: int) -> Array:
    """The float32 numbers around every limit between two integers: each tie, and half a last place of the sum on either side of it."""
    ties = np.arange(-1, 257)[:, None] - 0.5
    half = np.spacing(np.abs(ties).astype(np.float32)) / 2
    numbers = ((ties - zero_point + half * np.array([-1, 0, 1])) / np.float64(reciprocal)).astype(np.float32).view(np.int32).reshape(-1)
    around = numbers[:, None] + np.arange(-_SPLIT_NEIGHBOURS, _SPLIT_NEIGHBOURS + 1, dtype=np.int32)
    return np.unique(around.astype(np.int32).view(np.float32))
