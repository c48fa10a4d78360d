"""Forms in which formats write the integers of LiteRT's default kernels: the value of `arithmetic` that asks for one, "" for none; and a
bounded search for the scales and slopes of a HardSwish in float32 with the integers of TFLite's kernel for all codes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qconvert.arithmetic import (
    dequantize,
    pair_factors,
    quantize,
    tflite_hard_swish,
    tflite_mean_multiplier,
    xnnpack_leaky_relu,
    xnnpack_reduction,
)
from qconvert.arithmetic.storage import EXACT_IN_FLOAT32
from qconvert.evaluate.curves import codes_of
from qconvert.graph import Array, Graph, Op, Quantization, integer_range
from qconvert.kernels.kernel import quantizations_of
from qconvert.kernels.litert.references import slope_of
from qconvert.operators import kind_of, reduced_count
from qconvert.operators.call import spatial_axes
from qconvert.operators.space import positions

#: How many forms are tried at once, and how often; a form that is found at all is found after 320 on average.
_TRIED, _TIMES = 128, 12
#: Numbers are moved by shares of these powers of two.
_LEAST, _MOST = -15.0, -7.0


def xnnpack_reduction_form(
    op: Op, dtype: str, quantizations: tuple[Quantization, Quantization], count: int
) -> tuple[np.float32, np.float32, int]:
    """Return what a reduction by XNNPACK multiplies the sum of the kernel's integers by, what it adds then, and by how much stored integers
    are above these.

    Args:
        op: a ReduceMean or ReduceSum with `arithmetic`.
        dtype: of the stored integers.
        quantizations: of data and result.
        count: how many integers are summed.
    """
    shift = integer_range(dtype)[0] - integer_range("int8" if op["arithmetic"] == "xnnpack_qs8" else "uint8")[0]
    given, output = (item.shift_zero_point(-shift) for item in quantizations)
    return *xnnpack_reduction(given, output, count, op.kind == "ReduceMean"), shift


class HardSwishForm(NamedTuple):
    """x * clip(alpha * x + beta, 0, 1), with the scale by which stored integers become x; all float32."""

    scale: float
    alpha: float
    beta: float


def hard_swish_form(graph: Graph, op: Op) -> HardSwishForm | None:
    """Return the form in float32 with the integers of TFLite's HARD_SWISH for each of 256 codes; None if none is found, or sides have
    several scales."""
    given, result = graph[op.inputs[0]], graph[op.name]
    quantizations = quantizations_of(graph, op)
    if not quantizations or given.dtype not in _BYTES or given.dtype != result.dtype:
        return None
    sides = [(quantization.step, quantization.point) for quantization in quantizations]
    return _search_form(sides[0], sides[1], given.dtype)


@lru_cache(maxsize=1024)
def _search_form(given: tuple[float, int], result: tuple[float, int], dtype: str) -> HardSwishForm | None:
    own, output = (Quantization.per_tensor(*side) for side in (given, result))
    codes = codes_of(dtype)
    wanted = tflite_hard_swish(codes, own, output, dtype)
    steps = (codes.astype(np.int64) - given[1]).astype(np.float32)
    rng, best, middle = np.random.default_rng(0), codes.size + 1, np.ones(3)
    for _ in range(_TIMES):
        shares = middle * (1 + rng.normal(0, 1, (_TRIED, 3)) * 2.0 ** rng.uniform(_LEAST, _MOST, (_TRIED, 1)))
        shares[0] = middle
        numbers = (shares * (given[0], 1 / 6, 0.5)).astype(np.float32)
        off = _count_differences(steps, numbers, output, wanted)
        place = int(off.argmin())
        if off[place] < best:
            best, middle = int(off[place]), shares[place]
        if not best:
            return HardSwishForm(*(float(number) for number in numbers[place]))
    return None


def _count_differences(steps: Array, numbers: Array, output: Quantization, wanted: Array) -> Array:
    """Count for each form the codes with other integers, whether or not the runtime rounds alpha * x before it adds beta."""
    scale, alpha, beta = (numbers[:, place : place + 1] for place in range(3))
    real = steps * scale
    low, high = integer_range(wanted.dtype.name)
    counts = []
    for curve in (real * alpha + beta, (real.astype(np.float64) * alpha + beta).astype(np.float32)):
        product = real * np.clip(curve, np.float32(0), np.float32(1))
        stored = np.clip(np.rint(product / output.scale[0]) + output.zero_point[0], low, high)
        counts.append((stored != wanted).sum(axis=1))
    return np.asarray(np.maximum(counts[0], counts[1]))


#: The share by which the slope of a line is nudged, so that ties go up.
TIES_UP = 2.0**-19
#: Results of an interpolation are multiples of 1 / this, 255 at most, so that the share crosses no other one.
_FINEST = 2**9
_BYTES = ("int8", "uint8")
#: The type in which XNNPACK takes the data, by the arithmetic.
_XNNPACK = {"xnnpack_qs8": "int8", "xnnpack_qu8": "uint8"}


def addition(graph: Graph, op: Op) -> str:
    """Of an Add of bytes that XNNPACK takes."""
    return "xnnpack"


def root(graph: Graph, op: Op) -> str:
    """Of a Sqrt."""
    return "tflite" if quantizations_of(graph, op, None) else ""


def pair(graph: Graph, op: Op) -> str:
    """Of an Add, Sub or Mul of 16-bit data, if float64 holds its integers: factors below 1, zero points 0."""
    types = {graph[name].dtype for name in op.names}
    found = quantizations_of(graph, op, None) if types == {"int16"} else []
    if len(found) != 3 or not all(quantization.is_symmetric for quantization in found):
        return ""
    return "tflite" if pair_factors(kind_of(op).sum_sign, (found[0], found[1]), found[2])[2] < 1 else ""


def convolution(graph: Graph, op: Op) -> str:
    """Of a Conv of 16-bit data with sums of 64 bits, if its integers are exact in two sums of float32.

    That is, the data are split into two parts of at most 128 in magnitude, and both sums are below 2^24; with a multiplier of 15 bits the
    total is below 2^53.
    """
    if not op.has(2):
        return ""
    x, weights, bias, y = (graph[name] for name in op.names)
    if (x.dtype, weights.dtype, bias.dtype, y.dtype) != ("int16", "int8", "int64", "int16") or weights.data is None or bias.data is None:
        return ""
    quantizations = quantizations_of(graph, op, None, of_any_axis=True)
    if not quantizations or any(quantization.block_size or not quantization.is_symmetric for quantization in quantizations):
        return ""
    if not quantizations_of(graph, op) or quantizations[1].axis not in (None, 0):
        return ""
    largest = np.abs(weights.data.astype(np.int64)).sum(axis=tuple(range(1, weights.data.ndim))).max(initial=0)
    exact = 128 * largest < 2**24 and np.abs(bias.data.astype(np.float64)).max(initial=0) < 2.0**36
    return "tflite" if exact else ""


def reduction(graph: Graph, op: Op) -> str:
    """Of a ReduceMean or ReduceSum."""
    data, result, count = graph[op.inputs[0]], graph[op.name], reduced_count(graph, op)
    quantizations = quantizations_of(graph, op)
    if not count or data.dtype != result.dtype or not quantizations:
        return ""
    given, output = quantizations
    if not 2.0**-100 < given.step / output.step < 2.0**100:
        return ""  # float32 does not hold the factor
    if data.dtype in _XNNPACK.values():
        return next(name for name, dtype in _XNNPACK.items() if dtype == data.dtype) if count * 255 < EXACT_IN_FLOAT32 else ""
    if data.dtype != "int16" or not kind_of(op).keeps_range or count * 2**15 >= 2**31 or given.zero_point.any() or output.zero_point.any():
        return ""
    shift = tflite_mean_multiplier(given, output, count)[1]
    return "tflite" if shift >= -31 and count * 2.0 ** (15 + max(shift, 0)) < 2**31 else ""


def line_form(graph: Graph, op: Op) -> str:
    """Of a QUANTIZE or a LEAKY_RELU of bytes that XNNPACK takes, if its line gives the integers of all codes."""
    found, given, result = line(graph, op), graph[op.inputs[0]], graph[op.name]
    if found is None or given.quantization is None or result.quantization is None:
        return ""
    scale, slope = found
    codes = codes_of(given.dtype)
    real = dequantize(codes, Quantization.per_tensor(float(np.float32(scale)), given.quantization.point))
    sloped = quantize(np.where(real < 0, real * np.float32(slope), real), result.quantization, result.dtype)
    own = xnnpack_leaky_relu(codes, given.quantization, result.quantization, result.dtype, slope_of(op))
    return "xnnpack_line" if np.array_equal(sloped, own) else ""


def curve(graph: Graph, op: Op) -> str:
    """Of a HARD_SWISH of bytes, if a search finds its integers in float32."""
    return "tflite_hard_swish" if hard_swish_form(graph, op) is not None else ""


#: Elements up to which a Softmax is written as its kernel computes it: 10 nodes take 4 microseconds more for 12 classes and 10 for 1,001;
#: of 32,768 elements three times as long.
_FEW = 2**12


def distribution(graph: Graph, op: Op) -> str:
    """Of a SOFTMAX of few bytes."""
    data, result = graph[op.inputs[0]], graph[op.name]
    if data.shape is None or data.dtype not in _BYTES or data.dtype != result.dtype or not quantizations_of(graph, op):
        return ""
    count = math.prod(size for size in data.shape if isinstance(size, int))  # other sizes are those of batches
    return "tflite_softmax" if 0 < count <= _FEW else ""


def interpolation(graph: Graph, op: Op) -> str:
    """Of a linear Resize of bytes with one quantization by XNNPACK, which takes ties up, if its shares of 11 bits are exact and results are
    multiples of 2^-9: as where sizes, or the distances between corners, grow by small powers of two."""
    data, result, sizes = graph[op.inputs[0]], graph[op.name], graph.constant(op.inputs[1])
    shape = data.static_shape
    if op["mode"] != "linear" or sizes is None or shape is None or data.dtype not in _BYTES or not data.shares_quantization(result):
        return ""
    if not quantizations_of(graph, op):
        return ""
    finest = 1
    for axis, wanted in zip(spatial_axes(op, len(shape)), sizes.reshape(-1).tolist(), strict=True):
        numerators, denominator = positions(str(op["coordinate_transformation_mode"]), shape[axis], wanted)
        inside = (numerators > 0) & (numerators < denominator * (shape[axis] - 1))
        finest *= denominator // int(np.gcd.reduce(numerators[inside], initial=denominator))
    return "ties_up" if finest <= _FINEST and finest & (finest - 1) == 0 else ""


def line(graph: Graph, op: Op) -> tuple[float, float] | None:
    """Return data scale and negative slope of a LeakyRelu between Dequantize and Quantize with the integers of XNNPACK's operator.

    XNNPACK multiplies by whole 256ths of the ratio of the scales and takes ties up; onnxruntime runs the LeakyRelu as a table.

    Ties go up where positive data are larger by a share, and negative ones smaller: results are multiples of 1/256 over at most 255 steps,
    so that so small a share crosses no other tie (found right in all of 8,000 random cases; 2^-16 to 2^-22 are).
    """
    quantizations = quantizations_of(graph, op)
    if not quantizations:
        return None
    given, result = quantizations
    ratio = np.float32(given.scale[0]) / np.float32(result.scale[0])
    up = int(np.rint(256 * ratio))
    down = int(np.rint(256 * (ratio * np.float32(slope_of(op)))))
    if not up:
        return None
    return result.step * up / 256 * (1 + TIES_UP), down / up * (1.0 if down < 0 else (1 - TIES_UP) / (1 + TIES_UP))
