"""Ranges from the smallest and largest value of each run: of all of them, or averaged."""

from __future__ import annotations

from typing import Self

import numpy as np

from qconvert.calibration.observer import Observer
from qconvert.encodings import Range
from qconvert.graph import Array

__all__ = ["MinMax", "MovingAverage"]


class MinMax(Observer):
    """The smallest and the largest value of all. merge() is exact."""

    def _observe(self, values: Array, lowest: float, highest: float) -> None:
        pass

    def range(self) -> Range:
        ends = (self.lowest, self.highest) if self.count else (0.0, 0.0)
        return Range(np.array([ends[0]]), np.array([ends[1]]))


class MovingAverage(Observer):
    """Exponential averages of the smallest and the largest value of each run, as PyTorch's MovingAverageMinMaxObserver.

    average = first; average += constant * (value - average) for each run behind the first. merge() takes the other's runs as the later
    ones: the result is that of one observer that saw them in this order, but for rounding in float64.
    """

    def __init__(self, constant: float = 0.01) -> None:
        super().__init__()
        self.constant = constant
        # After a first run x, the average is x * decay + rest, whatever the runs behind it were: so another one's runs can be put behind.
        self._first, self._decay, self._rest = np.zeros(2), 1.0, np.zeros(2)

    def _observe(self, values: Array, lowest: float, highest: float) -> None:
        ends = np.array([lowest, highest])
        if self.count == values.size:
            self._first = ends
        else:
            self._append(ends, 1.0, np.zeros(2))

    def merge(self, other: Self) -> None:
        if not self.count:
            self._first, self._decay, self._rest = other._first, other._decay, other._rest
        elif other.count:
            self._append(other._first, other._decay, other._rest)
        super().merge(other)

    def _append(self, first: Array, decay: float, rest: Array) -> None:
        self._rest = decay * ((1 - self.constant) * self._rest + self.constant * first) + rest
        self._decay *= (1 - self.constant) * decay

    def range(self) -> Range:
        average = self._first * self._decay + self._rest
        return Range(average[:1], average[1:])
