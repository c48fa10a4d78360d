"""Whether an operator computes each sample of a batch by itself, and where its inputs have them; conversion/adapting/ asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qconvert.graph.schema import Op

__all__ = ["FIRST", "MIXES", "UNLESS_ALONG", "WHEREVER", "Samples", "before_last", "in_rows"]

#: (operator, index of the input, the axis of its samples, its rank) -> whether samples stay apart.
_Apart = Callable[[Op, int, int, int], bool]


@dataclass(frozen=True, slots=True)
class Samples:
    """What an operator does with the samples of a batch.

    Attributes:
        apart: whether it computes each sample by itself, where an input has them along an axis.
        rows: the inputs that have something for each sample, with the axis of it, where the data (input 0, or all of one role) have the
            samples along an axis: (operator, that axis) -> axis by input. A constant for one sample is repeated for each.
    """

    apart: _Apart
    rows: Callable[[Op, int], Mapping[int, int]] = lambda op, axis: {}


#: Nothing keeps the samples apart, or nobody knows.
MIXES = Samples(lambda op, index, axis, rank: False)
#: Each element of the result belongs to the samples of its data, wherever these stand: that the result has them along one axis is all that
#: need be seen.
WHEREVER = Samples(lambda op, index, axis, rank: True)
#: The data have the samples first.
FIRST = Samples(lambda op, index, axis, rank: index == axis == 0)
#: It computes along the axis that the attribute names.
UNLESS_ALONG = Samples(lambda op, index, axis, rank: op["axis"] % rank != axis)


def before_last(count: int) -> Samples:
    """It computes along so many of the last axes."""
    return Samples(lambda op, index, axis, rank: axis < rank - count)


def in_rows(rows: Callable[[Op], Mapping[int, int]]) -> Samples:
    """Its data and its states have the samples along these axes: (operator) -> axis by input."""

    def is_separate(op: Op, index: int, axis: int, rank: int) -> bool:
        return rows(op).get(index) == axis

    return Samples(is_separate, lambda op, axis: {index: own for index, own in rows(op).items() if index})
