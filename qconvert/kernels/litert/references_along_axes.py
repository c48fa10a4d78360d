"""The integers of LiteRT's kernels that compute along axes: averages, sums, softmax, norms, interpolation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic import (
    REQUANTIZERS,
    average_away,
    average_up,
    high_product,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    rescale_twice,
    round_half_away,
    round_half_even,
    rounding_divide_by_pot,
    saturate,
    shift_half_up,
    softmax_steps,
    sum_exponentials,
    tflite_softmax,
    tflite_wrapped_mean,
    xnnpack_reduce,
)
from qconvert.arithmetic.fixed_point_functions import gemmlowp_exp, gemmlowp_reciprocal, inverse_root, tflite_log
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op, Quantization, drop_keys, integer_range
from qconvert.kernels.kernel import Integers, quantizations_of
from qconvert.kernels.litert.references import on_steps, quantizations_of_16_bits, to_integers
from qconvert.kernels.products import Sums
from qconvert.operators import reduced_count
from qconvert.operators.call import spatial_axes

_BYTES = ("int8", "uint8")


def _keeps_quantization(graph: Graph, op: Op, stored: Sequence[Any]) -> bool:
    """Whether an operator of known data gives integers on the quantization that these have."""
    data = graph[op.inputs[0]]
    return stored[0] is not None and data.is_quantized and data.shares_quantization(graph[op.name])


def average_pool(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """AVERAGE_POOL_2D with one quantization: the sum of stored integers by their number, ties away from zero, or up for uint8
    (reference/integer_ops/pooling.h, reference/pooling.h)."""
    data = graph[op.inputs[0]]
    if not _keeps_quantization(graph, op, stored):
        return None
    if op["ceil_mode"] or len(op["kernel_shape"]) != 2:
        return None
    plain = drop_keys(op.attributes, "activation", "arithmetic")
    plain["count_include_pad"] = 1  # so that sums are windows of as many elements
    whole = {name: replace(graph[name], dtype="float64", quantization=None) for name in (op.inputs[0], op.name)}
    own, window = replace(graph, tensors={**graph.tensors, **whole}), float(np.prod(op["kernel_shape"]))
    values = np.asarray(stored[0], np.float64)
    found = [evaluate_op(own, replace(op, attributes=plain), [each])[0].stored * window for each in (values, np.ones_like(values))]
    sums, counts = (np.rint(each).astype(np.int64) for each in found)
    if op["count_include_pad"] and (counts != window).any():
        return None
    return Integers.clip_to_limits(graph, op, (average_up if data.dtype == "uint8" else average_away)(sums, counts))


def reduce_by_xnnpack(graph: Graph, op: Op, found: Sums, is_mean: bool) -> Integers | None:
    """MEAN and SUM of bytes by XNNPACK; see arithmetic.xnnpack_reduce()."""
    dtype = graph[op.name].dtype
    return Integers((xnnpack_reduce(found.sums, found.size, is_mean, found.given, found.output, dtype),))


def mean(graph: Graph, op: Op, found: Sums, plain: bool) -> Integers | None:
    """MEAN by TFLite's own kernels, but for the optimized one of bytes in images, which XNNPACK takes. The result's scale may be far below
    that of the data if calibration saw only means of 0."""
    dtype = graph[op.name].dtype
    if dtype in _BYTES and not plain:
        return None
    return to_integers(tflite_wrapped_mean(found.sums, found.size, found.given, found.output, dtype))


def total(graph: Graph, op: Op, found: Sums) -> Integers | None:
    """SUM of tflite-micro (QuantizedMeanOrSum, reference/reduce.h)."""
    steps = found.sums - found.size * found.given.point
    scaled = rescale_twice(steps, found.given.step / found.output.step)
    return Integers.clip_to_limits(graph, op, scaled + found.output.point)


def total_in_float(graph: Graph, op: Op, found: Sums) -> Integers | None:
    """SUM by TFLite's optimized kernel, in float32 (QuantizedMeanOrSum, reference/reduce.h)."""
    scale = found.given.scale[0] / found.output.scale[0]
    offset = np.float32(-found.given.point) * scale * np.float32(found.size)
    steps = round_half_away((found.sums.astype(np.float32) * scale + offset).astype(np.float64))
    return Integers((saturate(steps + found.output.point, graph[op.name].dtype),))


def product(graph: Graph, op: Op, stored: Sequence[Any], copies_one: bool) -> Integers | None:
    """REDUCE_PROD: elements are multiplied one after the other, each product by 16 bits of scale / (scale of the result)^(1 / count), and
    the last product once more; int32 holds them (QuantizedReduceProd, reference/reduce.h; GetQuantProdScaling, reduce.cc).

    Args:
        graph, op, stored: as of any reference.
        copies_one: whether a product of one element is the stored integer, whatever the scales, as of the optimized kernel (measured).
    """
    found, dtype, count = quantizations_of(graph, op), graph[op.name].dtype, reduced_count(graph, op)
    if not found or not count or stored[0] is None or graph[op.inputs[0]].dtype != dtype:
        return None
    rank = stored[0].ndim
    axes = sorted({int(axis) % rank for axis in np.asarray(stored[1]).reshape(-1)}) if op.has(1) else list(range(rank))
    sizes = stored[0].sum(axis=tuple(axes), keepdims=bool(op["keepdims"])).shape
    if copies_one and count == 1:
        is_exact = graph[op.inputs[0]].shares_quantization(graph[op.name])
        return Integers((stored[0].reshape(sizes),), "" if is_exact else "copies a product of one element")
    terms = np.moveaxis(stored[0].astype(np.int64) - found[0].point, axes, range(len(axes))).reshape(count, *sizes)
    factor, total, overflows = np.asarray(found[0].step / found[1].step ** (1 / count)), terms[0], False
    for term in (*terms[1:], 1):
        exact = REQUANTIZERS["tflite_16_bits"](total * term, factor)
        total = exact.astype(np.int32).astype(np.int64)
        overflows |= bool((total != exact).any())
    return Integers.clip_to_limits(graph, op, total + found[1].point)._replace(fault="overflows" if overflows else "")


def softmax_of_16_bits(graph: Graph, op: Op, stored: Sequence[Any], precision: str = "float32") -> Integers | None:
    """SOFTMAX of int16; see arithmetic.tflite_softmax()."""
    found = quantizations_of_16_bits(graph, op, stored)
    if found is None:
        return None
    return to_integers(tflite_softmax(stored[0], found[0].step, float(op["beta"]), int(op["axis"]), precision))


def _below_largest(op: Op, steps: Array) -> Array:
    """Return how far steps are below the largest along the operator's axis, which becomes the last one: 0 or less."""
    moved = np.moveaxis(steps, int(op["axis"]), -1)
    return np.asarray(moved - moved.max(axis=-1, keepdims=True, initial=np.iinfo(np.int64).min))


@on_steps()
def softmax_by_table(op: Op, steps: Sequence[Array], given: Sequence[Quantization], output: Quantization) -> Array:
    """SOFTMAX of bytes by TFLite's optimized kernel; see arithmetic.softmax_steps()."""
    return softmax_steps(steps[0], given[0].scale[0] * np.float32(op["beta"]), output.scale[0], int(op["axis"]))


@on_steps()
def log_softmax_by_table(op: Op, steps: Sequence[Array], given: Sequence[Quantization], output: Quantization) -> Array:
    """LOG_SOFTMAX of bytes by TFLite's optimized kernel, in float32 (optimized_ops.h, LogSoftmax)."""
    below, scale = _below_largest(op, steps[0]), given[0].scale[0]
    _, sums = sum_exponentials(scale, below)
    largest = np.moveaxis(steps[0], int(op["axis"]), -1).max(axis=-1, keepdims=True) + given[0].point
    offset = (scale * largest.astype(np.float32) + np.log(sums.astype(np.float64)).astype(np.float32)) / output.scale[0]
    found = (below + largest).astype(np.float32) * (scale / output.scale[0]) - offset
    return np.moveaxis(round_half_even(found), -1, int(op["axis"])).astype(np.int64)


#: Integer bits of differences from the largest, of the sum of their exponentials, and of the result of LOG_SOFTMAX.
_INPUT_BITS, _SUM_BITS, _LOG_BITS = 5, 12, 4


class _Exponents(NamedTuple):
    """Differences from the largest as fixed point with 5 integer bits, and what follows from them (PreprocessSoftmaxScaling and
    CalculateInputRadius, quantization_util.cc).

    Attributes:
        below: the differences, 0 or less; `factor` makes fixed point of them.
        radius: those from -radius on have an exponential.
        factor: multiplier and shift to the left.
        sums: of the exponentials, with 12 integer bits.
    """

    below: Array
    radius: int
    factor: tuple[int, int]
    sums: Array

    @classmethod
    def of(cls, op: Op, steps: Array, scale: float, beta: float = 1.0) -> _Exponents:
        multiplier, shift = (int(item) for item in quantize_multiplier(min(beta * scale * 2.0 ** (31 - _INPUT_BITS), 2.0**31 - 1)))
        radius = int((2**_INPUT_BITS - 1) * 2.0 ** (31 - _INPUT_BITS - shift))
        found = cls(_below_largest(op, steps), radius, (multiplier, shift), np.zeros(0))
        exponentials = np.where(found.below >= -radius, rounding_divide_by_pot(found.exponentials(), _SUM_BITS), 0)
        return found._replace(sums=exponentials.sum(axis=-1, keepdims=True))

    def fixed_point(self) -> Array:
        multiplier, shift = self.factor
        return high_product(np.maximum(self.below, -self.radius) << shift, multiplier)

    def exponentials(self) -> Array:
        return gemmlowp_exp(self.fixed_point(), _INPUT_BITS)


@on_steps()
def softmax(op: Op, steps: Sequence[Array], given: Sequence[Quantization], output: Quantization) -> Array:
    """SOFTMAX of bytes in fixed point (reference/softmax.h). Sums of 512 and more stop the process."""
    found = _Exponents.of(op, steps[0], given[0].step, float(op["beta"]))
    inverse, bits = gemmlowp_reciprocal(found.sums)
    product = high_product(inverse, found.exponentials())
    shares = rounding_divide_by_pot(product, np.maximum(bits - (31 - _SUM_BITS) + 31 - 8, 0))
    return np.moveaxis(np.where(found.below >= -found.radius, shares, 0), -1, int(op["axis"]))


@on_steps()
def log_softmax(op: Op, steps: Sequence[Array], given: Sequence[Quantization], output: Quantization) -> Array:
    """LOG_SOFTMAX of int8 in fixed point (reference/integer_ops/log_softmax.h)."""
    found = _Exponents.of(op, steps[0], given[0].step)
    multiplier, shift = found.factor
    logarithm = tflite_log(found.sums, _SUM_BITS, _INPUT_BITS)
    lowest = rescale_twice(logarithm - 2**31, 2.0 ** (31 - shift) / multiplier)
    steps_of_result = rounding_divide_by_pot(found.fixed_point() - logarithm, 31 - _INPUT_BITS - _LOG_BITS)
    kept = found.below > np.maximum(-found.radius - 1, lowest)
    return np.moveaxis(np.where(kept, steps_of_result, integer_range("int32")[0]), -1, int(op["axis"]))


@on_steps()
def normalize(op: Op, steps: Sequence[Array], given: Sequence[Quantization], output: Quantization) -> Array:
    """L2_NORMALIZATION of int8 (reference/integer_ops/l2normalization.h)."""
    multiplier, shift = inverse_root((steps[0] ** 2).sum(axis=int(op["axis"]), keepdims=True))
    return multiply_by_quantized_multiplier(steps[0], multiplier, shift + 7)


#: The coordinates of RESIZE_NEAREST_NEIGHBOR, and how they are rounded.
_NEAREST = {("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil"), ("align_corners", "round_prefer_ceil")}


class _Line(NamedTuple):
    """Where the results along an axis lie between two elements of the data: their places, and the share of the second."""

    below: Array
    above: Array
    share: Array


def _interpolate(
    graph: Graph, op: Op, stored: Sequence[Any], line: Callable[[str, int, int], _Line], one: Any, divide: Callable[[Array], Array]
) -> Integers | None:
    """Return the integers of a Resize of an image; None if they are not known.

    Args:
        graph, op, stored: as of any reference; a Resize that does not interpolate is nearest().
        line: (mode, size, wanted size) -> the neighbours along an axis and their shares.
        one: all of a share, in the type of the arithmetic.
        divide: makes results of the sums of four neighbours, each times both of its shares.
    """
    if op["mode"] != "linear":
        return nearest(graph, op, stored)
    result, mode = graph[op.name].static_shape, str(op["coordinate_transformation_mode"])
    if not _keeps_quantization(graph, op, stored) or result is None or stored[0].ndim != 4:
        return None
    if mode not in ("half_pixel", "align_corners", "asymmetric"):
        return None
    (first, rows), (second, columns) = ((axis, line(mode, stored[0].shape[axis], result[axis])) for axis in spatial_axes(op, 4))
    values, sums = np.asarray(stored[0]).astype(type(one)), []

    def along(share: Array, axis: int) -> Array:
        return share.reshape([-1 if place == axis else 1 for place in range(4)])

    for right, of_columns in ((columns.below, one - columns.share), (columns.above, columns.share)):
        for low, of_rows in ((rows.below, one - rows.share), (rows.above, rows.share)):
            sums.append(values.take(low, first).take(right, second) * along(of_rows, first) * along(of_columns, second))
    return Integers.clip_to_limits(graph, op, divide(np.asarray(sums[0] + sums[1] + sums[2] + sums[3])))


def nearest(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """RESIZE_NEAREST_NEIGHBOR, whose coordinates are of float32 (GetNearestNeighbor, reference/resize_nearest_neighbor.h)."""
    result = graph[op.name]
    sizes, mode = result.static_shape, (str(op["coordinate_transformation_mode"]), str(op["nearest_mode"]))
    if op["mode"] != "nearest" or mode not in _NEAREST or stored[0] is None or stored[0].ndim != 4 or sizes is None:
        return None
    if not graph[op.inputs[0]].shares_quantization(result):
        return None
    found = np.asarray(stored[0])
    for axis in spatial_axes(op, 4):
        size, wanted = found.shape[axis], sizes[axis]
        less = int(mode[0] == "align_corners" and wanted > 1)
        half = np.float32(0.5 if mode[0] == "half_pixel" else 0)
        at = (np.arange(wanted, dtype=np.float32) + half) * (np.float32(size - less) / np.float32(wanted - less))
        places = round_half_away(at) if mode[0] == "align_corners" else np.floor(at)
        found = found.take(np.clip(places.astype(np.int64), 0, size - 1), axis)
    return Integers((found,))


def _line_of_11_bits(mode: str, size: int, wanted: int) -> _Line:
    """Of XNNPACK (xnn_indirection_init_resize_bilinear2d_hwc_q11)."""
    less = int(mode == "align_corners" and wanted > 1)
    scale = np.float32(size - less) / np.float32(wanted - less)
    at = np.arange(wanted, dtype=np.float32) * scale
    if mode == "half_pixel":
        at = np.clip(at + (np.float32(0.5) * scale - np.float32(0.5)), np.float32(0), np.float32(size - 1))
    below = at.astype(np.int64)
    share = np.rint((at - below.astype(np.float32)) * np.float32(2**11)).astype(np.int64)
    return _Line(below, np.minimum(below + 1, size - 1), share)


def interpolate_by_xnnpack(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """RESIZE_BILINEAR of bytes by XNNPACK: shares of 11 bits, ties up (qs8-ibilinear)."""
    return _interpolate(graph, op, stored, _line_of_11_bits, np.int64(2**11), lambda found: shift_half_up(found, 22))


def _line_of_10_bits(mode: str, size: int, wanted: int) -> _Line:
    """Of TFLite (ComputeInterpolationValues, reference/resize_bilinear.h)."""
    less = int(mode == "align_corners" and wanted > 1)
    scale = ((size - less) * 2**10 + (wanted - less) // 2) // (wanted - less)
    at = np.arange(wanted, dtype=np.int64) * scale + (scale // 2 - 2**9 if mode == "half_pixel" else 0)
    below = np.maximum(at >> 10, 0)
    return _Line(below, np.clip(-(-at >> 10), 0, size - 1), at - (below << 10))


def interpolate(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """RESIZE_BILINEAR of int8 and int16 by TFLite's own kernels: coordinates of 10 bits, ties away from zero."""
    return _interpolate(graph, op, stored, _line_of_10_bits, np.int64(2**10), lambda found: average_away(found, 2**20))


def _line_of_float(mode: str, size: int, wanted: int) -> _Line:
    """Of TFLite (ComputeInterpolationValues of float, reference/resize_bilinear.h)."""
    less = int(mode == "align_corners" and wanted > 1)
    scale, half = np.float32(size - less) / np.float32(wanted - less), np.float32(0.5)
    at = np.arange(wanted, dtype=np.float32)
    at = (at + half) * scale - half if mode == "half_pixel" else at * scale
    below = np.maximum(np.floor(at), 0).astype(np.int64)
    return _Line(below, np.minimum(np.ceil(at).astype(np.int64), size - 1), at - below.astype(np.float32))


def interpolate_in_float(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """RESIZE_BILINEAR of uint8 by TFLite's reference kernel: float32, and half of a step added before the fraction is dropped."""
    return _interpolate(graph, op, stored, _line_of_float, np.float32(1), lambda found: np.trunc(found + np.float32(0.5)))
