"""Observers see the values of one tensor, run after run, and choose the range that its quantization holds.

This file has their common base, the observers of the smallest and largest values, and histograms that grow in one pass without loss.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from typing import ClassVar, NamedTuple, Self

import numpy as np

from qconvert.encodings import QParams, Range, quantization_of
from qconvert.errors import InvalidModelError, OptionError
from qconvert.graph import Array


class Histogram(NamedTuple):
    """How often values were seen.

    Attributes:
        counts: int64, of each bin.
        edges: float64, one more than bins.
    """

    counts: Array
    edges: Array

    def merge_bins(self, most: int) -> Histogram:
        """Join neighbouring bins between the first and the last that hold anything, so that at most so many are left."""
        filled = np.flatnonzero(self.counts)
        if not filled.size:
            return Histogram(self.counts[:1], self.edges[:2])
        counts, edges = self.counts[filled[0] : filled[-1] + 1], self.edges[filled[0] : filled[-1] + 2]
        starts = np.arange(0, counts.size, max(1, -(-counts.size // most)))
        return Histogram(np.add.reduceat(counts, starts), np.append(edges[starts], edges[-1]))


class Observer(ABC):
    """Sees the values of one tensor: update() for each run; next_pass() between passes over the same data; then range() or quantization().

    Attributes:
        passes: how often it has to see the data.
        number: of the pass that it is in, from 0.
        lowest: the smallest value so far; infinity before the first.
        highest: the largest, likewise.
        count: how many values there were, in the first pass.
    """

    passes: ClassVar[int] = 1

    def __init__(self) -> None:
        self.lowest, self.highest, self.count, self.number = np.inf, -np.inf, 0, 0

    def update(self, values: Array) -> None:
        """Takes the values of one run, in the tensor's shape (MNN's methods look at it, others do not).

        Raises:
            InvalidModelError: some are NaN or infinite; who knows the tensor's name fills in `where`.
        """
        values = np.asarray(values, np.float32)
        if not values.size or self.number >= self.passes:
            return
        lowest, highest = float(values.min()), float(values.max())  # both are NaN if any value is
        if not (np.isfinite(lowest) and np.isfinite(highest)):
            what = "NaN" if np.isnan(lowest) else "infinite"
            raise InvalidModelError(
                f"has values that are {what}", remedy="Look for the sample that gives them, or the faulty operator.", rule="not-finite"
            )
        if not self.number:
            self.lowest, self.highest = min(self.lowest, lowest), max(self.highest, highest)
            self.count += values.size
        self._observe(values, lowest, highest)

    @abstractmethod
    def _observe(self, values: Array, lowest: float, highest: float) -> None:
        """Takes finite float32 values, at least one, between these two."""

    def next_pass(self) -> None:
        """Says that the same data comes once more. Who has seen it as often as needed ignores it then."""
        self.number += 1

    def merge(self, other: Self) -> None:
        """Takes in what another one saw, in the same pass, with the same options; the other stays as it is.

        Of methods with two passes, all are merged after the first; after next_pass(), copies of the merged one see the second pass.
        These share what the first pass gave, and it is counted once when they are merged.
        """
        if not self.number:
            self.lowest, self.highest = min(self.lowest, other.lowest), max(self.highest, other.highest)
            self.count += other.count

    @abstractmethod
    def range(self) -> Range:
        """The range that the method chooses; from 0 to 0 if there were no values."""

    def quantization(self, dtype: str = "int8", *, symmetric: bool = False, narrow: bool = False) -> QParams:
        """The quantization that holds the range; see quantization_of(). Methods that choose a scale themselves give that."""
        return quantization_of(self.range(), dtype, symmetric=symmetric, narrow=narrow)

    def histogram(self) -> Histogram | None:
        """What was seen, for a plot, if the method counts it."""
        return None

    @property
    def absmax(self) -> float:
        return max(-self.lowest, self.highest, 0.0)


def require_between(name: str, value: float, lowest: float, highest: float) -> None:
    """Raises OptionError where an option of a method is out of its bounds."""
    if not lowest <= value <= highest:
        raise OptionError(f"{name} is {value:g}; it must be from {lowest:g} to {highest:g}", rule="number-out-of-range")


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


#: Bins on each side of 0. A bin is a power of two wide, the narrowest with which they hold every value: half of them at least are in use.
HALF = 4096
#: How many values are counted at a time, so that they stay in the cache.
CHUNK = 1 << 16
#: Exponent of the narrowest bins, so that float32 holds their width and its inverse.
_NARROWEST = -126


class Folded(NamedTuple):
    """A histogram of absolute values, from 0 to the largest.

    Attributes:
        counts: int64, of bins of one width; the last is not empty, unless there is one alone.
        width: of a bin.
    """

    counts: Array
    width: float


class Counted(Observer):
    """Counts values in bins [i * width, (i + 1) * width), i from 0 to 4095, and those of negative values in the same bins mirrored.

    When a value lies beyond, pairs of bins become one, which is exact: counts are those that the final width would have given from the
    start, in any order of runs, and merge() gives the counts of one observer that saw everything. The width of a bin is at most 1/2048 of
    the largest absolute value, which bounds the error of methods that choose among bins.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts = np.zeros(2 * HALF, np.int64)
        self._exponent = _NARROWEST  # a bin is 2 ** exponent wide

    @property
    def width(self) -> float:
        return math.ldexp(1.0, self._exponent)

    def _observe(self, values: Array, lowest: float, highest: float) -> None:
        self._widen(_exponent(max(-lowest, highest)))
        flat, inverse = values.reshape(-1), np.float32(math.ldexp(1.0, -self._exponent))
        bins = np.empty(min(CHUNK, flat.size), np.int32)
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK]
            own = bins[: part.size]
            with np.errstate(under="ignore"):
                np.copyto(own, part * inverse, casting="unsafe")  # towards zero
            own += HALF
            own -= part < 0
            self._counts += np.bincount(own, minlength=2 * HALF)

    def _widen(self, exponent: int) -> None:
        """Merges bins until they are at least so wide."""
        while self._exponent < exponent:
            if not self._counts.any():
                self._exponent = exponent
                return
            pairs = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts = np.zeros_like(self._counts)
            self._counts[HALF // 2 : HALF // 2 + HALF] = pairs
            self._exponent += 1

    def merge(self, other: Self) -> None:
        self._widen(other._exponent)
        if other._exponent < self._exponent:
            other = copy(other)
            other._widen(self._exponent)  # makes counts again, so that the given one keeps its own
        self._counts = self._counts + other._counts
        super().merge(other)

    def histogram(self) -> Histogram:
        """The bins from the one of the smallest value to the one of the largest."""
        found = np.flatnonzero(self._counts)
        first, last = (int(found[0]), int(found[-1])) if found.size else (HALF, HALF)
        return Histogram(self._counts[first : last + 1], (np.arange(first, last + 2) - HALF) * self.width)

    def fold_to_absolute(self) -> Folded:
        """The histogram of absolute values."""
        both = self._counts[HALF:] + self._counts[HALF - 1 :: -1]
        found = np.flatnonzero(both)
        return Folded(both[: int(found[-1]) + 1 if found.size else 1], self.width)

    def clip_to_threshold(self, threshold: float) -> Range:
        """The values seen that are no larger than the threshold, on either side."""
        if not self.count:
            return Range(np.zeros(1), np.zeros(1))
        low, high = max(self.lowest, -threshold), min(self.highest, threshold)
        return Range(np.array([min(low, high)]), np.array([high]))


class Percentile(Counted):
    """Leaves out (100 - percentile) / 2 of 100 values at each end.

    Both limits are interpolated within a bin, so they are within one bin (at most 1/2048 of the largest absolute value) of the values
    at these places in order. onnxruntime's takes bins of its own number and their lower edges.
    """

    def __init__(self, percentile: float = 99.99) -> None:
        super().__init__()
        require_between("percentile", percentile, 0, 100)
        self.percentile = percentile

    def range(self) -> Range:
        if not self.count:
            return self.clip_to_threshold(0.0)
        outside = self.count * (100.0 - self.percentile) / 200.0
        below = np.cumsum(self._counts)
        low = self._value(below, outside, int(np.searchsorted(below, outside, side="right")))
        high = self._value(below, self.count - outside, int(np.searchsorted(below, self.count - outside, side="left")))
        return Range(np.array([low]), np.array([max(low, high)]))

    def _value(self, below: Array, place: float, bin: int) -> float:
        """The value at a place in order, which lies in a bin; `below`: values up to the end of each bin."""
        within = (place - float(below[bin] - self._counts[bin])) / float(self._counts[bin])
        return float(np.clip((bin - HALF + within) * self.width, self.lowest, self.highest))


def _exponent(absmax: float) -> int:
    """Of the narrowest bins that hold a value."""
    return max(math.frexp(absmax)[1] - (HALF.bit_length() - 1), _NARROWEST) if absmax else _NARROWEST
