"""Functions along axes as formulas: reductions, Softmax, norms and normalizations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import batch_norm_factor
from qconvert.arithmetic.storage import numpy_dtype
from qconvert.operators.formulas.formula import lowers
from qconvert.operators.sizes import reshape_sizes
from qconvert.operators.values import (
    Value,
    absolute,
    apply,
    cast,
    clip,
    constant_of,
    dtype_of,
    exp,
    log,
    maximum,
    rank_of,
    reduce,
    reshape,
    shape_of,
    slice_along,
    sqrt,
    square,
    transpose,
)


@lowers("ReduceL1")
def reduce_l1(x: Value, axes: Value, *, keepdims: int) -> Value:
    """The sum of magnitudes."""
    return apply("ReduceSum", absolute(x), axes, keepdims=keepdims)


@lowers("ReduceL2")
def reduce_l2(x: Value, axes: Value, *, keepdims: int) -> Value:
    """The root of the sum of squares."""
    return sqrt(apply("ReduceSum", square(x), axes, keepdims=keepdims))


@lowers("ReduceSumSquare")
def reduce_sum_square(x: Value, axes: Value, *, keepdims: int) -> Value:
    """The sum of squares."""
    return apply("ReduceSum", square(x), axes, keepdims=keepdims)


@lowers("ReduceLogSum")
def reduce_log_sum(x: Value, axes: Value, *, keepdims: int) -> Value:
    """The logarithm of the sum."""
    return log(apply("ReduceSum", x, axes, keepdims=keepdims))


@lowers("ReduceLogSumExp")
def reduce_log_sum_exp(x: Value, axes: Value, *, keepdims: int) -> Value:
    """max + log(sum(exp(x - max))), which does not overflow; a max that is infinite, and so less itself no number, is the last number."""
    last = _float_range(x)[1]
    largest = clip(apply("ReduceMax", x, axes, keepdims=1), -last, last)
    total = apply("ReduceSum", exp(x - largest), axes, keepdims=keepdims)
    return log(total) + (largest if keepdims else clip(apply("ReduceMax", x, axes, keepdims=0), -last, last))


def _float_range(x: Value) -> tuple[float, float]:
    """The least positive number of a type that runtimes tell from zero, and the last one; those of bfloat16 are nearly float32's."""
    if dtype_of(x) == "float16":
        return float(np.finfo(np.float16).smallest_subnormal), float(np.finfo(np.float16).max)
    return float(np.finfo(np.float32).tiny), 3e38


@lowers("CumProd", in_float=True)
def exclusive_product(x: Value, *, axis: int, exclusive: int, reverse: int) -> Value:
    """The products up to each element of what stands 1 element before, a one being before the first."""
    size = _size_along(x, axis)
    if not exclusive or not size:
        return None
    return apply("CumProd", _shift_elements(x, 1, size, axis, reverse), axis=axis, reverse=reverse)


@lowers("CumProd", in_float=True)
def cumulative_product(x: Value, *, axis: int, reverse: int) -> Value:
    """Each element times the one 1 before it, then 2, 4 ... before it, ones being before the first (Hillis and Steele, 1986)."""
    size, value = _size_along(x, axis), x
    if not size:
        return None
    for power in range((size - 1).bit_length()):
        value = value * _shift_elements(value, 2**power, size, axis, reverse)
    return apply("Identity", x) if size == 1 else value


@lowers("CumSum", in_float=True)
def inclusive_sum(x: Value, *, axis: int, exclusive: int, reverse: int) -> Value:
    """The sum of all elements before each one, and the element itself."""
    return None if exclusive else apply("CumSum", x, axis=axis, exclusive=1, reverse=reverse) + x


@lowers("Hardmax")
def hardmax(x: Value, *, axis: int) -> Value:
    """Where the place along the axis is that of the first largest element."""
    size, rank = _size_along(x, axis), rank_of(x) or 1
    if not size:
        return None
    places = np.arange(size, dtype=np.int64).reshape(-1, *[1] * (rank - 1 - axis % rank))
    return cast(apply("Equal", apply("ArgMax", x, axis=axis, keepdims=1), places), dtype_of(x))


def _size_along(x: Value, axis: int) -> int:
    """The size of an axis; 0 if it is not known."""
    shape = shape_of(x)
    size = shape[axis] if shape else None
    return size if isinstance(size, int) else 0


def _shift_elements(x: Value, by: int, size: int, axis: int, reverse: int) -> Value:
    """What stands `by` elements before each element, or after it, along an axis; ones where nothing stands."""
    rank = rank_of(x) or 0
    pads = np.zeros((2, rank), np.int64)
    pads[int(bool(reverse)), axis % rank] = by
    kept = slice_along(x, by, None, axis) if reverse else slice_along(x, 0, size - by, axis)
    return apply("Pad", kept, pads.reshape(-1), np.ones((), numpy_dtype(dtype_of(x))))


@lowers("Softmax")
def softmax(x: Value, *, axis: int, beta: float) -> Value:
    """Softmax(x * beta)."""
    return None if beta == 1.0 else apply("Softmax", x * beta, axis=axis)


@lowers("Softmax")
def softmax_along_last(x: Value, *, axis: int, beta: float) -> Value:
    """Along the last axis, between two Transposes."""
    return _along_last("Softmax", x, axis, beta=beta)


@lowers("LogSoftmax")
def log_softmax_along_last(x: Value, *, axis: int) -> Value:
    """Along the last axis, between two Transposes."""
    return _along_last("LogSoftmax", x, axis)


@lowers("LpNormalization")
def lp_normalization(x: Value, *, axis: int, p: int) -> Value:
    """x over its norm along the axis; a vector of zeros stays."""
    if p not in (1, 2):
        return None
    norm = reduce("ReduceL1" if p == 1 else "ReduceL2", x, [axis])
    return x / maximum(norm, _float_range(x)[0])


@lowers("LpNormalization")
def lp_normalization_along_last(x: Value, *, axis: int, p: int) -> Value:
    """The Euclidean norm along the last axis, between two Transposes."""
    return _along_last("LpNormalization", x, axis, p=p) if p == 2 else None


def _along_last(kind: str, x: Value, axis: int, **attributes: Any) -> Value:
    """An operator along the last axis in place of one along another; None if that is the last one, or the rank is not known."""
    rank = rank_of(x)
    if rank is None or axis % max(rank, 1) == rank - 1:
        return None
    order = [*(place for place in range(rank) if place != axis % rank), axis % rank]
    return transpose(apply(kind, transpose(x, order), axis=-1, **attributes), [order.index(place) for place in range(rank)])


def _normalize(x: Value, axes: Sequence[int], epsilon: float, *, centred: bool = True) -> Value:
    """(x - mean) / sqrt(variance + epsilon) along axes, or x / sqrt(mean square + epsilon)."""
    mean = reduce("ReduceMean", x, axes) if centred else None
    squares = apply("SquaredDifference", x, mean) if centred else square(x)
    scale = apply("Rsqrt", reduce("ReduceMean", squares, axes) + epsilon)
    return (x - mean if centred else x) * scale


def _scale_and_shift(x: Value, scale: Value, bias: Value) -> Value:
    return x * scale if bias is None else x * scale + bias


@lowers("LayerNormalization", is_sought=True)
def layer_normalization(x: Value, scale: Value, bias: Value = None, *, axis: int, epsilon: float) -> Value:
    """Over the axes from `axis` on (Ba et al., 2016)."""
    rank = rank_of(x)
    return None if rank is None else _scale_and_shift(_normalize(x, range(axis % rank, rank), epsilon), scale, bias)


@lowers("LayerNormalization", is_emitted=False)
def layer_normalization_by_squares(x: Value, scale: Value, bias: Value = None, *, axis: int, epsilon: float) -> Value:
    """With the variance as mean(x * x) - mean(x) * mean(x), of which little is left where the mean is large."""
    rank = rank_of(x)
    if rank is None:
        return None
    axes = range(axis % rank, rank)
    mean = reduce("ReduceMean", x, axes)
    variance = reduce("ReduceMean", x * x, axes) - mean * mean
    return _scale_and_shift((x - mean) * apply("Rsqrt", variance + epsilon), scale, bias)


@lowers("RMSNormalization", is_sought=True)
def rms_normalization(x: Value, scale: Value, *, axis: int, epsilon: float) -> Value:
    """Over the axes from `axis` on, without a mean (Zhang and Sennrich, 2019)."""
    rank = rank_of(x)
    return None if rank is None else _normalize(x, range(axis % rank, rank), epsilon, centred=False) * scale


def _along_channels(values: Value, rank: int, data_format: str) -> Value:
    """One value for each channel, in a shape that broadcasts to the data; of a constant another constant."""
    if data_format == "channels_last":
        return values
    known = constant_of(values)
    return reshape(values if known is None else known, [-1, *[1] * (rank - 2)])


@lowers("InstanceNormalization")
def instance_normalization(x: Value, scale: Value, bias: Value, *, epsilon: float, data_format: str) -> Value:
    """Over the spatial axes (Ulyanov et al., 2016)."""
    rank = rank_of(x)
    if rank is None:
        return None
    axes = range(1, rank - 1) if data_format == "channels_last" else range(2, rank)
    return _scale_and_shift(_normalize(x, axes, epsilon), *(_along_channels(item, rank, data_format) for item in (scale, bias)))


@lowers("GroupNormalization")
def group_normalization(x: Value, scale: Value, bias: Value, *, epsilon: float, num_groups: int, data_format: str) -> Value:
    """The channels are split into groups, each of which is normalized with its space (Wu and He, 2018). One size may be dynamic."""
    shape = shape_of(x)
    is_last = data_format == "channels_last"
    if shape is None or sum(isinstance(size, str) for size in shape) > 1 or isinstance(shape[-1 if is_last else 1], str):
        return None
    rank, known = len(shape), reshape_sizes(shape)
    channels = known[-1 if is_last else 1]
    parts = [num_groups, channels // num_groups]
    sizes = known[1:-1] if is_last else known[2:]
    space = -1 if min(sizes, default=1) < 0 else math.prod(sizes)
    # One axis of space, since TensorFlow Lite before 2.15 aborts where a SQUARED_DIFFERENCE broadcasts more than 4 axes.
    split = [known[0], space, *parts] if is_last else [known[0], *parts, space]
    even = reshape(_normalize(reshape(x, split), [1, 3] if is_last else [2, 3], epsilon), known)
    return _scale_and_shift(even, *(_along_channels(item, rank, data_format) for item in (scale, bias)))


@lowers("BatchNormalization")
def batch_normalization(x: Value, scale: Value, bias: Value, mean: Value, variance: Value, *, epsilon: float, data_format: str) -> Value:
    """x * (scale / sqrt(variance + epsilon)) + (bias - mean * that), with both factors worked out before in float64."""
    rank = rank_of(x)
    numbers = [known.astype(np.float64) for item in (scale, bias, mean, variance) if (known := constant_of(item)) is not None]
    if rank is None or len(numbers) < 4:
        return None
    factor = batch_norm_factor(numbers[0], numbers[3], epsilon)
    return _scale_and_shift(x, *(_along_channels(item, rank, data_format) for item in (factor, numbers[1] - numbers[2] * factor)))
