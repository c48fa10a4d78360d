"""Between which float values the results of an operator lie, and which values it takes.

Rules say what is sure for a real-valued function, before an activation; passes/quantizations/hulls.py takes them through a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.arithmetic.dtypes import Array
from qconvert.graph.schema import Op, Tensor

__all__ = [
    "ANY",
    "Bounds",
    "Demand",
    "Domain",
    "Interval",
    "Number",
    "Operands",
    "any_value",
    "fixed_bounds",
    "hull",
    "of_positive_data",
    "within_data",
    "within_data_or_zero",
]

#: Smallest and largest float value, both included.
Interval = tuple[float, float]
#: The number that a size known only at run time has.
Number = Callable[[int | str], int]
#: (index of an input, smallest and largest value that the operator takes there).
Demand = tuple[int, float, float]

ANY: Interval = (-math.inf, math.inf)
#: The smallest value of what is divided by, or whose logarithm is taken.
POSITIVE = 1e-2


@dataclass(frozen=True, slots=True)
class Operands:
    """What is known of the inputs of an operator before it runs.

    Attributes:
        op: the operator.
        tensors: of its inputs; None for those that are absent.
        intervals: in which their float values lie.
        data: the intervals of the inputs that hold its data.
    """

    op: Op
    tensors: tuple[Tensor | None, ...]
    intervals: tuple[Interval, ...] = ()
    data: tuple[Interval, ...] = ()

    def tensor(self, index: int) -> Tensor | None:
        """Input `index`; None if it is absent."""
        return self.tensors[index] if index < len(self.tensors) else None

    def interval(self, index: int, absent: Interval = ANY) -> Interval:
        """That of input `index`, or `absent`."""
        return absent if self.tensor(index) is None else self.intervals[index]

    def constant(self, index: int) -> Array | None:
        """The stored values of input `index`; None if it is absent or computed at run time."""
        tensor = self.tensor(index)
        return None if tensor is None else tensor.data

    def real(self, index: int) -> Array | None:
        """The float values of input `index`, likewise."""
        tensor = self.tensor(index)
        if tensor is None or tensor.data is None or (tensor.quantization is not None and "float" in tensor.dtype):
            return None
        return tensor.data.astype(np.float64) if tensor.quantization is None else dequantize(tensor.data, tensor.quantization)

    def size(self, index: int, axis: int, number: Number) -> int:
        """A size of input `index`; 1 where its rank is not known."""
        tensor = self.tensor(index)
        shape = None if tensor is None else tensor.shape
        return number(shape[axis]) if shape is not None and -len(shape) <= axis < len(shape) else 1


#: Between which values results lie.
Bounds = Callable[[Operands], Interval]
#: Which values the operator takes: what it says of none is free.
Domain = Callable[[Operands, Number], Iterator[Demand]]


def hull(intervals: Iterable[Interval]) -> Interval:
    """The smallest interval that holds all; any value if there are none."""
    found = list(intervals)
    return (min(low for low, _ in found), max(high for _, high in found)) if found else ANY


def any_value(operands: Operands) -> Interval:
    """The function may give any value."""
    return ANY


def fixed_bounds(low: float, high: float = math.inf) -> Bounds:
    """The function's values lie between two numbers, whatever its data are."""
    return lambda operands: (low, high)


def within_data(operands: Operands) -> Interval:
    """Between the smallest and the largest of the data."""
    return hull(operands.data)


def within_data_or_zero(operands: Operands) -> Interval:
    """Likewise, with the zero of padding."""
    return hull([*operands.data, (0.0, 0.0)])


def of_positive_data(least: float = POSITIVE) -> Domain:
    """The function is one of data from `least` on. Quantizations say by themselves what quantized data are."""

    def domain(operands: Operands, number: Number) -> Iterator[Demand]:
        tensor = operands.tensor(0)
        if tensor is not None and not tensor.is_quantized:
            yield 0, least, math.inf

    return domain
