"""Choosing scale and zero point from the range of real values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.arithmetic.quantization import Quantization
from qconvert.errors import OptionError

__all__ = ["choose_cambricon", "choose_google_affine", "choose_google_symmetric"]


def choose_google_symmetric(minimum: Any, maximum: Any, bits: int = 8, axis: int | None = None) -> Quantization:
    """OneFlow's "google" symmetric formula: scale = max(|min|, |max|) / (2**(bits-1) - 1), zero point 0.

    A range of only zero gives scale 1, since OneFlow's own scale of 0 cannot be divided by.

    Args:
        minimum: smallest real value, one, or one for each index along `axis`.
        maximum: largest, likewise.
        bits: 2 to 8.
        axis: the dimension that the values run along, or None.
    """
    low, high = _range(minimum, maximum)
    scale = np.maximum(np.abs(low), np.abs(high)) / np.float32(2 ** (bits - 1) - 1)
    return _chosen(scale, np.zeros(scale.shape, np.int64), axis)


def choose_google_affine(minimum: Any, maximum: Any, bits: int = 8, axis: int | None = None) -> Quantization:
    """OneFlow's "google" affine formula: scale = (max - min) / (2**bits - 1), zero point -rint(min / scale).

    The grid is unsigned. The range is extended to contain 0 first, as TFLite's and gemmlowp's are, because padding
    needs an exact zero. OneFlow does not extend it, and its zero point then leaves the grid (negative if min > 0).

    Args: as of choose_google_symmetric.
    """
    low, high = _range(minimum, maximum)
    low, high = np.minimum(low, np.float32(0)), np.maximum(high, np.float32(0))
    scale = (high - low) / np.float32(2**bits - 1)
    safe = np.where(scale > 0, scale, np.float32(1))
    return _chosen(scale, np.int64(0) - np.rint(low / safe).astype(np.int64), axis)


def choose_cambricon(minimum: Any, maximum: Any, bits: int = 8) -> Quantization:
    """OneFlow's "cambricon" formula: scale = 2**(floor(log2(absmax)) - (bits - 2)), zero point 0.

    It is per tensor only. OneFlow stores the exponent in place of the scale. An absmax just below a power of two
    saturates by at most one step, and a power of two uses half of the grid. A range of only zero gives scale 1,
    since its logarithm is minus infinity.

    Args:
        minimum: smallest real value.
        maximum: largest.
        bits: 2 to 8.
    """
    low, high = _range(minimum, maximum)
    absmax = np.maximum(np.abs(low), np.abs(high)).max()
    # frexp gives absmax = m * 2**e with m in [0.5, 1): floor(log2) is e - 1, exactly.
    exponent = math.frexp(float(absmax))[1] - 1 - (bits - 2)
    return Quantization.per_tensor(2.0**exponent if absmax else 1.0)


def _range(minimum: Any, maximum: Any) -> tuple[Array, Array]:
    low = np.atleast_1d(np.asarray(minimum, np.float32))
    high = np.atleast_1d(np.asarray(maximum, np.float32))
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        raise OptionError(f"a range from {minimum} to {maximum} has no scale")
    return low, high


def _chosen(scale: Array, zero_point: Array, axis: int | None) -> Quantization:
    return Quantization(np.where(scale > 0, scale, np.float32(1)).astype(np.float32), zero_point, axis)
