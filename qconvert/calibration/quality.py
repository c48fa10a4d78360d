"""How good chosen grids are: the noise of rounding in each tensor."""

from __future__ import annotations

import math
from typing import Self

import numpy as np

from qconvert.encodings import Grid
from qconvert.graph import Array

__all__ = ["Noise", "decibels"]


class Noise:
    """Adds up how far values are from themselves on a grid. Shown to observe() like an Observer.

    Args:
        grid: where they are rounded to, per tensor; None where they stay as they are.
    """

    passes = 1

    def __init__(self, grid: Grid | None) -> None:
        self._grid, self._signal, self._noise, self._clipped, self._count = grid, 0.0, 0.0, 0, 0

    def update(self, values: Array) -> None:
        if self._grid is None:
            return
        flat = np.asarray(values, np.float32).reshape(-1)
        scale = np.float32(self._grid.quantization.scale[0])
        point = int(self._grid.quantization.zero_point[0])
        low, high = self._grid.quantization.limits(self._grid.dtype)
        steps = np.rint(flat / scale)
        np.clip(steps, low - point, high - point, out=steps)
        steps *= scale
        steps -= flat
        self._signal += float(np.vdot(flat, flat))
        self._noise += float(np.vdot(steps, steps))
        np.abs(steps, out=steps)
        self._clipped += int(np.count_nonzero(steps > scale * np.float32(0.501)))
        self._count += flat.size

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
    def clipped(self) -> float:
        """The share of values beyond the grid."""
        return self._clipped / self._count if self._count else 0.0


def decibels(signal: float, noise: float) -> float | None:
    """10 log10(signal / noise); None without noise or signal."""
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None
