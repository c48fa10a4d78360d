"""How constants of source and result differ in what they mean, however they are stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.arithmetic import accumulator_scale, scale_and_zero_point
from qconvert.graph import Array, Quantization, Tensor, equal_data

#: What a bias may be off a tie by rounding alone, in steps of the accumulator.
_CLOSE = 1e-3


def compare_constants(before: Tensor, after: Tensor, perm: Sequence[int]) -> str:
    """In words, how constants differ in what they mean; "" if they do not. Constants next to data may be turned with these."""
    if not perm and before.shares_quantization(after) and equal_data(before.data, after.data):
        return ""
    for word, a, b in zip(("values", "scales"), _remove_zero_point(before), _remove_zero_point(after), strict=True):
        if perm and max(a.ndim, b.ndim) > len(perm):
            return f"has other {word}"
        if perm and a.ndim and b.ndim:
            a, b = (side.reshape((1,) * (len(perm) - side.ndim) + side.shape) for side in (a, b))
            a = a.transpose(perm)
        elif a.size == b.size == 1:
            a, b = a.reshape(()), b.reshape(())
        alike = a.shape == b.shape or word == "scales"
        if not alike or not (np.array_equal(a, b, equal_nan=a.dtype.kind == "f") or (word == "scales" and bool(np.all(a == b)))):
            return f"has other {word}"
    return ""


def _remove_zero_point(tensor: Tensor) -> tuple[Array, Array]:
    """A constant's integers from the zero point, and its scales, which broadcast against them; or plain values and 0."""
    assert tensor.data is not None
    if tensor.quantization is None:
        return tensor.data, np.zeros(())
    scale, point = scale_and_zero_point(tensor.quantization, tensor.data.shape)
    if "int" not in tensor.dtype:
        return tensor.data, np.asarray(scale)
    wide = {1: np.int16, 2: np.int32}.get(tensor.data.dtype.itemsize, np.int64)
    return tensor.data.astype(wide) - point.astype(wide), np.asarray(scale)


def is_rounded_bias(first: Tensor, second: Tensor, scales: Sequence[Quantization | None]) -> bool:
    """Whether the bias of one of two products is that of the other, rounded to the scale of the accumulator.

    Args:
        first, second: constants.
        scales: the quantizations of data and weights.
    """
    data, weights = scales
    if first.is_quantized == second.is_quantized or first.shape != second.shape or data is None or weights is None:
        return False
    apart = np.abs(first.float_values() - second.float_values())
    return bool((apart <= (0.5 + _CLOSE) * accumulator_scale(data, weights)).all())
