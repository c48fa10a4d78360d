"""Scales of activations as MNN's files state them: quantizations of int8."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.arithmetic.dtypes import integer_range
from qconvert.encodings import QParams
from qconvert.errors import InvalidModelError
from qconvert.graph import Quantization

__all__ = ["activation_quantization", "integer_limits"]


def activation_quantization(
    scales: Sequence[float], zero_point: float, where: str, limits: tuple[float, float] = (-128, 127), *, dtype: str = "int8"
) -> QParams:
    """The quantization of an activation.

    Args:
        scales: one, or one for each channel.
        zero_point: of all.
        where: the place in the file, for the error.
        limits: the smallest and largest integer that is used.
        dtype: of the integers.

    Raises:
        InvalidModelError: a scale is no positive number of float32, or the zero point or a limit is no integer of int8.
    """
    with np.errstate(all="ignore"):
        scale = np.array(scales, np.float64).astype(np.float32)
    if bad := [stated for stated, kept in zip(scales, scale.tolist(), strict=True) if not (np.isfinite(kept) and kept > 0)]:
        raise InvalidModelError(f"the scale is {bad[0]}; MNN requires a positive, finite float32", where=where, rule="scale-not-positive")
    low, high = integer_range(dtype)
    if zero_point != int(zero_point if np.isfinite(zero_point) else 0) or not low <= zero_point <= high:
        raise InvalidModelError(
            f"the zero point is {zero_point}; MNN requires an integer of {dtype}", where=where, rule="zero-point-outside-type"
        )
    zero_points = np.full(scale.shape, int(zero_point), np.int64)
    return QParams(dtype, Quantization(scale, zero_points, None if scale.size == 1 else 1, 0, *integer_limits(limits, where, dtype)))


def integer_limits(limits: tuple[float, float], where: str, dtype: str = "int8") -> tuple[int | None, int | None]:
    """Limits as a Quantization has them: None where they are the type's.

    Raises:
        InvalidModelError: they are no integers of the type, or the wrong way round.
    """
    low, high = integer_range(dtype)
    if not (low <= limits[0] < limits[1] <= high) or any(limit != int(limit) for limit in limits):
        raise InvalidModelError(
            f"the integers run from {limits[0]} to {limits[1]}, which is not a range within {dtype}",
            where=where,
            rule="limits-outside-type",
        )
    return (None if limits[0] == low else int(limits[0])), (None if limits[1] == high else int(limits[1]))
