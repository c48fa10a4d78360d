"""Values counted in bins that grow with them, in one pass and without loss: what several methods choose ranges from."""

from __future__ import annotations

import math
from copy import copy
from typing import NamedTuple, Self

import numpy as np

from qconvert.calibration.observer import Histogram, Observer, require_between
from qconvert.encodings import Range
from qconvert.graph import Array

__all__ = ["HALF", "Counted", "Folded", "Percentile"]

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
