"""Operators that some formats compose: parts of complex numbers, pooling of squares, fake quantization, triangles."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.operators.formulas.formula import lowers
from qconvert.operators.signal import fake_quant_grid
from qconvert.operators.values import Value, apply, clip, constant_of, reshape, shape_of, sqrt, square, where

__all__: list[str] = []

#: Elements of a constant mask.
_LARGEST = 2**24


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
    low, high, scale = fake_quant_grid(float(min), float(max), int(num_bits), bool(narrow_range))
    steps = (clip(x, low, high) - low) * float(np.float32(1) / np.float32(scale))
    return apply("Floor", steps + 0.5) * scale + low


@lowers("Trilu")
def triangle(x: Value, diagonal: Value = None, *, upper: int) -> Value:
    """The data where a mask of the triangle is true, else 0; the mask is computed where a size or the diagonal is not known before."""
    shape = shape_of(x)
    if shape is None or len(shape) < 2:
        return None
    known = np.zeros(1, np.int64) if diagonal is None else constant_of(diagonal)
    rows, columns = (_places(x, axis) for axis in (-2, -1))
    if isinstance(rows, np.ndarray) and isinstance(columns, np.ndarray) and known is not None:
        if rows.size * columns.size > _LARGEST:
            return None
        ones = np.ones((rows.size, columns.size), bool)
        mask = np.triu(ones, int(known.reshape(-1)[0])) if upper else np.tril(ones, int(known.reshape(-1)[0]))
    else:
        edge = reshape(rows, [-1, 1]) + (diagonal if known is None else int(known.reshape(-1)[0]))
        mask = apply("GreaterOrEqual" if upper else "LessOrEqual", columns, edge)
    return where(mask, x, 0)


def _places(x: Value, axis: int) -> Value:
    """The indices along an axis."""
    shape = shape_of(x) or ()
    size = shape[axis]
    if isinstance(size, int):
        return np.arange(size)
    return apply("Range", 0, apply("Gather", apply("Shape", x), np.array(len(shape) + axis)), 1)
