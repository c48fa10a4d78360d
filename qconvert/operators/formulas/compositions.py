"""Operators that some formats compose: parts of complex numbers, pooling of squares, fake quantization, triangles."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.operators.formulas.formula import lowers
from qconvert.operators.signal import fake_quant_grid
from qconvert.operators.values import Value, apply, clip, sqrt, square

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
    low, high, scale = fake_quant_grid(float(min), float(max), int(num_bits), bool(narrow_range))
    steps = (clip(x, low, high) - low) * float(np.float32(1) / np.float32(scale))
    return apply("Floor", steps + 0.5) * scale + low
