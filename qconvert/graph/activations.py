"""Fused activations: the real ranges that they leave, and the stored integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.arithmetic import round_half_away, round_half_even
from qconvert.arithmetic.dtypes import integer_range
from qconvert.graph.schema import Tensor

__all__ = ["ACTIVATIONS", "clip_range", "is_exact", "simplest_activation"]

#: The real range that each fused activation leaves: (lower bound, upper bound), None where there is none.
ACTIVATIONS: Mapping[str, tuple[float | None, float | None]] = {
    "": (None, None),
    "relu": (0.0, None),
    "relu6": (0.0, 6.0),
    "relu_n1_to_1": (-1.0, 1.0),
}


def clip_range(tensor: Tensor, bounds: tuple[float | None, float | None]) -> tuple[int, int]:
    """The stored integers that a fused activation leaves: [quantize(lower bound), quantize(upper bound)], within the quantization's limits.

    TFLite computes the same limits (CalculateActivationRangeQuantized, kernel_util.cc): zero_point + round(bound / scale).
    """
    assert tensor.quantization is not None
    low, high = tensor.quantization.limits(tensor.dtype)
    scale, zero_point = float(tensor.quantization.scale[0]), int(tensor.quantization.zero_point[0])

    def quantize_bound(bound: float) -> int:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # validation names a scale that is no positive number
            quotient = np.nan_to_num(np.clip(np.float32(bound) / np.float32(scale), -(2.0**40), 2.0**40))
        return zero_point + int(np.trunc(quotient + np.copysign(np.float32(0.5), quotient)))

    lower, upper = bounds
    lowest = low if lower is None else min(max(low, quantize_bound(lower)), high)
    highest = high if upper is None else max(min(high, quantize_bound(upper)), low)
    return lowest, highest


def simplest_activation(tensor: Tensor, bounds: tuple[float | None, float | None]) -> str:
    """The first of ACTIVATIONS that leaves the same stored integers of `tensor` as `bounds`: "" if that is the whole quantization.

    Raises KeyError if none does.
    """
    limits = clip_range(tensor, bounds)
    for name, known in ACTIVATIONS.items():
        if clip_range(tensor, known) == limits:
            return name
    raise KeyError(f"no activation leaves {limits} of {tensor.name!r}")


def is_exact(bounds: tuple[float | None, float | None], quantization: Tensor) -> bool:
    """Whether a bound rounds to one stored integer however ties are rounded, so that clipping integers is clipping float values."""
    assert quantization.quantization is not None
    if quantization.dtype not in ("int8", "uint8", "int16", "uint16", "int4", "uint4"):
        return False
    low, high = integer_range(quantization.dtype)
    for bound in bounds:
        if bound is None or not np.isfinite(bound):
            continue
        with np.errstate(over="ignore"):
            steps = np.float32(bound) / quantization.quantization.scale[0]
        even, away = (
            int(np.clip(f(steps) + quantization.quantization.zero_point[0], low, high)) for f in (round_half_even, round_half_away)
        )
        if even != away:
            return False
    return True
