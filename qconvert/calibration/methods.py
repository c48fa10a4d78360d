"""The methods that choose ranges of activations, by name: METHODS is their register."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from qconvert.calibration.extremes import MinMax, MovingAverage
from qconvert.calibration.observer import Observer
from qconvert.errors import OptionError
from qconvert.plugins import Option
from qconvert.plugins.options import checked, taken

__all__ = ["METHODS", "Method", "observer"]


@dataclass(frozen=True, slots=True)
class Method:
    """A method of calibration.

    Attributes:
        name: as in `--method`.
        summary: what it chooses, in one line.
        observer: the class of its observers, which takes the options by name.
        options: what it can be told.
    """

    name: str
    summary: str
    observer: Callable[..., Observer]
    options: tuple[Option, ...] = ()


_REGISTER = (
    Method("min-max", "the smallest and the largest value", MinMax),
    Method("moving-average", "exponential averages of the smallest and largest value of each run", MovingAverage,
           (Option("constant", float, 0.01, "how much of each new run enters the average."),)),
)  # fmt: skip

METHODS: Mapping[str, Method] = {method.name: method for method in _REGISTER}


def observer(method: str, **options: Any) -> Callable[[], Observer]:
    """What makes the observer of each tensor; it can be pickled, as observers can.

    Args:
        method: one of METHODS.
        options: those that the method declares.

    Raises:
        OptionError: there is no such method or option.

    Example:
        make = observer("percentile", percentile=99.9)
        observers = {name: make() for name in names}
    """
    if method not in METHODS:
        raise OptionError(f"there is no method of calibration {method!r}", remedy=f"Use one of {', '.join(METHODS)}.")
    found = METHODS[method]
    return partial(found.observer, **taken(checked(options, found.options, f"no calibration by {method}"), found.options))
