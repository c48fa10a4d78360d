"""What observers share: they see the values of one tensor, run after run, and choose the range that its quantization is to hold.

An observer keeps no values, so its memory does not grow with the number of runs. It can be pickled, and
observers of different runs can be merged, so many processes or machines observe at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Self

import numpy as np

from qconvert.encodings import QParams, Range, quantization_of
from qconvert.errors import InvalidModelError, OptionError
from qconvert.graph import Array

__all__ = ["Histogram", "Observer", "require_between"]


class Histogram(NamedTuple):
    """How often values were seen.

    Attributes:
        counts: int64, of each bin.
        edges: float64, one more than bins.
    """

    counts: Array
    edges: Array


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
