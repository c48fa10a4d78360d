"""1 / sqrt(x) of a positive integer as a fixed-point multiplier: TFLite's GetInvSqrtQuantizedMultiplierExp (kernels/internal/common.h)."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.arithmetic.requantize import rounding_divide_by_pot, saturating_rounding_doubling_high_mul

__all__ = ["HALF_ROOT", "ITERATIONS", "LARGEST", "ONE", "THREE_HALVES", "inverse_root"]

#: sqrt(1/2) in 31 bits.
HALF_ROOT = 1518500250
#: 1.5 and 1 of 3 integer bits.
THREE_HALVES, ONE = (1 << 28) + (1 << 27), 1 << 28
LARGEST = 2**31 - 1
#: Of Newton's method.
ITERATIONS = 5


def inverse_root(values: Array) -> tuple[Array, Array]:
    """Multipliers and shifts, as multiply_by_quantized_multiplier() takes them.

    Args:
        values: int64, 1 or more, below 2**31.
    """
    found = [_one(int(value)) for value in values.reshape(-1)]
    multiplier, shift = (np.array([pair[index] for pair in found], np.int64).reshape(values.shape) for index in (0, 1))
    return multiplier, shift


def _one(value: int) -> tuple[int, int]:
    if value <= 1:
        return LARGEST, 0
    shift = 11
    while value >= 1 << 29:
        value, shift = value // 4, shift + 1
    pairs = (32 - value.bit_length() - 1) // 2 - 1
    shift, value = shift - pairs, value << (2 * pairs)
    whole = value >> 1
    half = int(rounding_divide_by_pot(whole, 1))
    x = ONE
    for _ in range(ITERATIONS):
        cube = _wider(_times(_times(x, x), x), 6)
        x = _wider(_times(THREE_HALVES, x) - _times(half, cube), 3)
    x = _times(x, HALF_ROOT)
    if shift < 0:
        x, shift = x << -shift, 0
    return x, -shift


def _times(a: int, b: int) -> int:
    return int(saturating_rounding_doubling_high_mul(a, b))


def _wider(x: int, bits: int) -> int:
    """With fewer integer bits, limited to int32."""
    return max(-LARGEST - 1, min(LARGEST, x << bits))
