"""Fused activations: the real ranges that they leave, and the stored integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.graph.schema import Tensor

__all__ = ["ACTIVATIONS", "clip_range", "simplest_activation"]

#: The real range that each fused activation leaves: (lower bound, upper bound), None where there is none.
ACTIVATIONS: Mapping[str, tuple[float | None, float | None]] = {
    "": (None, None),
    "relu": (0.0, None),
    "relu6": (0.0, 6.0),
    "relu_n1_to_1": (-1.0, 1.0),
}


def clip_range(tensor: Tensor, bounds: tuple[float | None, float | None]) -> tuple[int, int]:
    """The stored integers that a fused activation leaves: [quantize(lower bound), quantize(upper bound)], within the grid's limits.

    TFLite computes the same limits (CalculateActivationRangeQuantized, kernel_util.cc): zero_point + round(bound / scale).
    """
    assert tensor.quantization is not None
    low, high = tensor.quantization.limits(tensor.dtype)
    scale, zero_point = float(tensor.quantization.scale[0]), int(tensor.quantization.zero_point[0])

    def stored(bound: float) -> int:
        quotient = np.float32(bound) / np.float32(scale)
        return zero_point + int(np.trunc(quotient + np.copysign(np.float32(0.5), quotient)))

    lower, upper = bounds
    lowest = low if lower is None else min(max(low, stored(lower)), high)
    highest = high if upper is None else max(min(high, stored(upper)), low)
    return lowest, highest


def simplest_activation(tensor: Tensor, bounds: tuple[float | None, float | None]) -> str:
    """The first of ACTIVATIONS that leaves the same stored integers of `tensor` as `bounds`: "" if that is the whole grid.

    Raises KeyError if none does.
    """
    limits = clip_range(tensor, bounds)
    for name, known in ACTIVATIONS.items():
        if clip_range(tensor, known) == limits:
            return name
    raise KeyError(f"no activation leaves {limits} of {tensor.name!r}")
