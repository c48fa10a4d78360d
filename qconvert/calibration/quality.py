"""How good chosen quantizations are: the noise of rounding in each tensor, and in the outputs."""

from __future__ import annotations

import math
from typing import Self

import numpy as np

from qconvert.encodings import QParams
from qconvert.graph import Array

__all__ = ["Noise", "decibels"]

#: Values that are looked at together: a few arrays of them fit a cache.
_PIECE = 1 << 16


class Noise:
    """Adds up how far values are from themselves with a quantization. Shown to observe() like an Observer.

    Args:
        quantization: where they are rounded to, per tensor; None where they stay as they are.
    """

    passes = 1

    def __init__(self, quantization: QParams | None) -> None:
        self._quantization, self._signal, self._noise, self._clipped, self._count = quantization, 0.0, 0.0, 0, 0

    def update(self, values: Array) -> None:
        if self._quantization is None:
            return
        flat = np.asarray(values, np.float32).reshape(-1)
        for start in range(0, flat.size, _PIECE):
            self._add(flat[start : start + _PIECE], self._quantization)
        self._count += flat.size

    def _add(self, values: Array, quantization: QParams) -> None:
        scale, point = np.float32(quantization.quantization.scale[0]), int(quantization.quantization.zero_point[0])
        low, high = quantization.quantization.limits(quantization.dtype)
        steps = np.rint(values / scale)
        np.clip(steps, low - point, high - point, out=steps)
        steps *= scale
        steps -= values
        self._signal += float(np.vdot(values, values))
        self._noise += float(np.vdot(steps, steps))
        np.abs(steps, out=steps)
        self._clipped += int(np.count_nonzero(steps > scale * np.float32(0.501)))

    def next_pass(self) -> None:
        pass

    def merge(self, other: Self) -> None:
        self._signal += other._signal
        self._noise += other._noise
        self._clipped += other._clipped
        self._count += other._count

    @property
    def sqnr_db(self) -> float | None:
        """The ratio of signal to noise; None where nothing is rounded away, or there is no signal."""
        return decibels(self._signal, self._noise)

    @property
    def clipped_share(self) -> float:
        """The share of values beyond the quantization."""
        return self._clipped / self._count if self._count else 0.0


def decibels(signal: float, noise: float) -> float | None:
    """10 log10(signal / noise); None without noise or signal."""
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None
