"""Normalizations as formulas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.arithmetic import batch_norm_factor
from qconvert.operators.formulas.formula import lowers
from qconvert.operators.values import Value, apply, constant_of, rank_of, reduce, reshape, shape_of, square

__all__: list[str] = []


def _normalize(x: Value, axes: Sequence[int], epsilon: float, *, centred: bool = True) -> Value:
    """(x - mean) / sqrt(variance + epsilon) along axes, or x / sqrt(mean square + epsilon)."""
    mean = reduce("ReduceMean", x, axes) if centred else None
    squares = apply("SquaredDifference", x, mean) if centred else square(x)
    scale = apply("Rsqrt", reduce("ReduceMean", squares, axes) + epsilon)
    return (x - mean if centred else x) * scale


def _scale_and_shift(x: Value, scale: Value, bias: Value) -> Value:
    return x * scale if bias is None else x * scale + bias


@lowers("LayerNormalization")
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


@lowers("RMSNormalization")
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
    rank, known = len(shape), [-1 if isinstance(size, str) else size for size in shape]
    channels = known[-1 if is_last else 1]
    parts = [num_groups, channels // num_groups]
    split = [*known[:-1], *parts] if is_last else [known[0], *parts, *known[2:]]
    axes = [*range(1, rank - 1), rank] if is_last else list(range(2, rank + 1))
    even = reshape(_normalize(reshape(x, split), axes, epsilon), known)
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
