"""Operators that some formats compose: parts of complex numbers, pooling of squares, fake quantization, ranges, numbers of shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import numpy_dtype
from qconvert.operators.formulas.formula import lowers
from qconvert.operators.signal import fake_quant_quantization
from qconvert.operators.values import Value, apply, cast, clip, dtype_of, maximum, minimum, rank_of, reduce, shape_of, sqrt, square, where

__all__: list[str] = []


def _part(x: Value, index: int) -> Value:
    return apply("Gather", x, np.array(index), axis=-1)


@lowers("Real")
def real(x: Value) -> Value:
    """The first of the two parts along the last axis."""
    return _part(x, 0)


@lowers("Imag")
def imaginary(x: Value) -> Value:
    """The second of them."""
    return _part(x, 1)


@lowers("ComplexAbs")
def magnitude(x: Value) -> Value:
    """The root of the sum of squares of both."""
    return sqrt(square(_part(x, 0)) + square(_part(x, 1)))


@lowers("L2Pool")
def pool_of_squares(x: Value, **window: Any) -> Value:
    """The root of the mean of squares of what is no padding."""
    return sqrt(apply("AveragePool", square(x), **window))


@lowers("FakeQuant")
def steps_from_the_lowest(x: Value, *, min: float, max: float, num_bits: int, narrow_range: int) -> Value:
    """Steps from the lowest value, rounded up from a half, in the order of TFLite's kernel (fake_quant.h)."""
    low, high, scale = fake_quant_quantization(float(min), float(max), int(num_bits), bool(narrow_range))
    steps = (clip(x, low, high) - low) * float(np.float32(1) / np.float32(scale))
    return apply("Floor", steps + 0.5) * scale + low


@lowers("Bucketize")
def count_boundaries(x: Value, boundaries: Value) -> Value:
    """The number of boundaries that are not above the element."""
    if 0 in (shape_of(x) or ()):  # onnxruntime's sums over an axis keep it where there are no elements
        return cast(x, "int32")
    if dtype_of(x) != "float32":
        x, boundaries = cast(x, "float64"), cast(boundaries, "float64")
    above = apply("GreaterOrEqual", apply("Unsqueeze", x, np.array([-1])), boundaries)
    return reduce("ReduceSum", cast(above, "int32"), [-1], keepdims=False)


@lowers("Rank")
def length_of_the_shape(x: Value) -> Value:
    """The shape of the shape."""
    return apply("Gather", apply("Shape", apply("Shape", x)), np.array(0))


@lowers("ZerosLike")
def expand_zero(x: Value) -> Value:
    """Zero, expanded to the shape of the data."""
    return apply("Expand", np.zeros((), numpy_dtype(dtype_of(x))), apply("Shape", x))


@lowers("BroadcastArgs")
def sizes_of_either_shape(first: Value, second: Value) -> Value:
    """The sizes of either shape, the shorter one filled up with 1 in front: of the second where the first has 1."""
    sizes = [(shape_of(item) or ("",))[0] for item in (first, second)]
    lengths = [size for size in sizes if isinstance(size, int)]
    if len(lengths) < 2:
        return None
    filled = []
    for item, length in zip((first, second), lengths, strict=True):
        ones = np.ones(max(lengths) - length, numpy_dtype(dtype_of(item)))
        filled.append(apply("Concat", ones, item, axis=0) if ones.size else item)
    return where(apply("Equal", filled[0], 1), filled[1], filled[0])


@lowers("DynamicQuantizeLinear")
def quantize_by_range(x: Value) -> tuple[Value, ...] | None:
    """(high - low) / 255 of a range that holds 0, and the rest from that, as ONNX defines it."""
    rank = rank_of(x)
    if rank is None:
        return None
    low, high = (
        minimum(reduce("ReduceMin", x, range(rank), keepdims=False), 0.0),
        maximum(reduce("ReduceMax", x, range(rank), keepdims=False), 0.0),
    )
    span = high - low
    scale = where(apply("Equal", span, 0.0), 1.0, span / 255.0)
    point = apply("Round", minimum(maximum(-low / scale, 0.0), 255.0))
    steps = minimum(maximum(apply("Round", x / scale) + point, 0.0), 255.0)
    stored, zero = (cast(cast(item, "int32"), "uint8") for item in (steps, point))  # LiteRT has no CAST from float32 to uint8
    return stored, scale, zero
