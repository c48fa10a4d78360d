"""What stored integers of source and result mean: whether two tensors have one quantization, and two constants one value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.arithmetic import accumulator_scale, dequantize, scale_and_zero_point
from qconvert.graph import Array, Quantization, Tensor, equal_data

__all__ = ["compare_constants", "float_values", "has_byte_codes", "is_rounded_bias", "stored_offset"]

#: What a bias may be off a tie by rounding alone, in steps of the accumulator.
_CLOSE = 1e-3
#: Types of 8 bits, and of 16: of each pair one stores the other's integers with another zero point.
_SIBLINGS = ({"int8", "uint8"}, {"int16", "uint16"})


def has_byte_codes(tensor: Tensor) -> bool:
    """Whether a tensor stores 8-bit integers with one scale and zero point."""
    return tensor.dtype in _SIBLINGS[0] and tensor.quantization is not None and tensor.quantization.is_per_tensor


def stored_offset(before: Tensor, after: Tensor) -> int | None:
    """What is added to stored integers of one tensor to give the other, of the same float values; None if the quantizations differ
    otherwise."""
    a, b = before.quantization, after.quantization
    if a is None or b is None:
        return 0 if a is b and before.dtype == after.dtype else None
    if a.axis != b.axis or a.block_size != b.block_size or not np.array_equal(a.scale, b.scale):
        return None
    offsets = np.unique(b.zero_point - a.zero_point)
    if offsets.size != 1:
        return None
    if before.dtype == after.dtype:
        return 0 if not offsets[0] else None
    bits = 128 if {before.dtype, after.dtype} == _SIBLINGS[0] else 2**15 if {before.dtype, after.dtype} == _SIBLINGS[1] else 0
    difference = int(offsets[0])
    return difference if bits and difference == (bits if after.dtype.startswith("u") else -bits) else None


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


def float_values(tensor: Tensor) -> Array:
    """The float64 values of a constant."""
    assert tensor.data is not None
    return tensor.data.astype(np.float64) if tensor.quantization is None else dequantize(tensor.data, tensor.quantization)


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
    apart = np.abs(float_values(first) - float_values(second))
    return bool((apart <= (0.5 + _CLOSE) * accumulator_scale(data, weights)).all())
