"""Ranges from the smallest and largest value of each run: of all of them, or averaged."""

from __future__ import annotations

from typing import Self

import numpy as np

from qconvert.calibration.observer import Observer, require_between
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
    """Averages of the smallest and the largest value of each run, so that a single wild run does not decide.

    With the constant 0 all runs count alike, as in onnxruntime's `moving_average`. With another one the later count more: average = first;
    average += constant * (value - average), as PyTorch's MovingAverageMinMaxObserver has it with 0.01 for hundreds of runs of training; of
    few runs the first one decides then. merge() takes the other's runs as the later ones: the result is that of one observer that saw them
    in this order, but for rounding in float64.
    """

    def __init__(self, constant: float = 0.0) -> None:
        super().__init__()
        require_between("constant", constant, 0, 1)
        self.constant, self.runs = constant, 0
        # After a first run x, the average is x * decay + rest, whatever the runs after it were: so another one's runs can be put after.
        self._first, self._decay, self._rest = np.zeros(2), 1.0, np.zeros(2)

    def _observe(self, values: Array, lowest: float, highest: float) -> None:
        self._append(1, np.array([lowest, highest]), 1.0, np.zeros(2))

    def merge(self, other: Self) -> None:
        if other.runs:
            self._append(other.runs, other._first, other._decay, other._rest)
        super().merge(other)

    def _append(self, runs: int, first: Array, decay: float, rest: Array) -> None:
        if not self.runs:
            self._first, self._decay, self._rest = first, decay, rest
        elif self.constant:
            self._rest = decay * ((1 - self.constant) * self._rest + self.constant * first) + rest
            self._decay *= (1 - self.constant) * decay
        else:  # decay and rest make the sum of all runs
            self._rest = self._rest + first + rest
        self.runs += runs

    def range(self) -> Range:
        average = (self._first * self._decay + self._rest) / (1 if self.constant else max(self.runs, 1))
        return Range(average[:1], average[1:])
