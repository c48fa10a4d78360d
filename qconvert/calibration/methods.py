"""The methods that choose ranges of activations, by name: METHODS is their register."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from qconvert.calibration.divergences import Entropy, JensenShannon, SymmetricEntropy
from qconvert.calibration.histograms import Percentile
from qconvert.calibration.min_max import MinMax, MovingAverage
from qconvert.calibration.mnn import PACK, MnnAdmm, MnnKl
from qconvert.calibration.observer import Observer
from qconvert.calibration.squared_error import SquaredError
from qconvert.errors import OptionError
from qconvert.plugins import Option
from qconvert.plugins.options import check_options, fill_defaults

__all__ = ["METHODS", "Method", "observer"]


@dataclass(frozen=True, slots=True)
class Method:
    """A method of calibration.

    Attributes:
        name: as in `--method`.
        summary: what it chooses, in one line.
        observer: the class of its observers, which takes the options by name.
        options: what it can be told.
        of_inputs: options that are others for the inputs of a network, unless they are given.
    """

    name: str
    summary: str
    observer: Callable[..., Observer]
    options: tuple[Option, ...] = ()
    of_inputs: Mapping[str, Any] = field(default_factory=dict)


_LEVELS = Option("levels", int, 128, "levels of one sign; 256 for unsigned types and values that are never negative.")
_CLAMP = Option("clamp", int, 127, "the largest integer (feature_clamp_value).")

_REGISTER = (
    Method("min-max", "the smallest and the largest value", MinMax),
    Method("moving-average", "moving averages of the smallest and largest value of each run", MovingAverage,
           (Option("constant", float, 0.0, "weight of each new run in the average; 0: all runs count alike."),)),
    Method("percentile", "the range without the outermost values on each side", Percentile,
           (Option("percentile", float, 99.99, "percentage of the values inside the range."),)),
    Method("entropy", "TensorRT's: the threshold with the smallest Kullback-Leibler divergence", Entropy, (_LEVELS,)),
    Method("symmetric-kl", "the threshold with the smallest sum of the divergences in both directions", SymmetricEntropy, (_LEVELS,)),
    Method("js", "the threshold with the smallest divergence of Jensen and Shannon", JensenShannon, (_LEVELS,)),
    Method("mse", "the range whose quantization has the smallest mean squared error", SquaredError,
           (Option("bits", int, 8, "of the affine quantization that a range is chosen for."),)),
    Method("mnn-kl", "MNN's KL, equal in every bit", MnnKl, (_CLAMP,)),
    Method("mnn-admm", "MNN's ADMM on the last sample, equal in every bit", MnnAdmm,
           (_CLAMP, Option("pack", int, PACK, "channels that MNN's CPU stores together; 1 for inputs of the network.")),
           of_inputs={"pack": 1}),
)  # fmt: skip

METHODS: Mapping[str, Method] = {method.name: method for method in _REGISTER}


def observer(method: str, *, of_input: bool = False, **options: Any) -> Callable[[], Observer]:
    """What makes the observer of each tensor; it can be pickled, as observers can.

    Args:
        method: one of METHODS.
        of_input: whether the tensors are inputs of the network, which MNN stores otherwise.
        options: those that the method declares.

    Raises:
        OptionError: there is no such method or option.

    Example:
        make = observer("percentile", percentile=99.9)
        observers = {name: make() for name in names}
    """
    if method not in METHODS:
        raise OptionError(
            f"the calibration method is {method!r}, which is unknown", remedy=f"Use one of {', '.join(METHODS)}.", rule="unknown-method"
        )
    found = METHODS[method]
    given = {**(found.of_inputs if of_input else {}), **check_options(options, found.options, f"no calibration by {method}")}
    return partial(found.observer, **fill_defaults(given, found.options))
