"""The methods that choose ranges of activations, by name: METHODS is their register. Here are those that try thresholds on a histogram:
the smallest divergence between the distribution and what few levels leave of it, and the smallest mean squared error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from qconvert.calibration.mnn import PACK, MnnAdmm, MnnKl
from qconvert.calibration.observer import HALF, Counted, MinMax, MovingAverage, Observer, Percentile, require_between
from qconvert.encodings import QParams, Range, quantization_of
from qconvert.errors import require_word
from qconvert.graph import Array, integer_range
from qconvert.plugins import Option
from qconvert.plugins.options import check_options, fill_defaults

#: The share of values that a candidate keeps at least, of those outside the first bin, which every range holds.
_KEPT = 0.99
#: Divergences that differ by less are equal.
_EQUAL = 1e-9


class Split:
    """A histogram cut after each of several numbers of bins, in float64.

    Attributes:
        ends: the numbers of bins, (n,).
        beyond: how many values lie after each, (n,).
        inside: how many do not.
        total: of all values.
        edges: the first bin of each level, and the end of the last level, (n, levels + 1).
        spread: the count of each non-empty bin of a level in Q, (n, levels).
        levels: the counts of each level, likewise.
    """

    def __init__(self, counts: Array, ends: Array, levels: int) -> None:
        self.counts, self.ends, self._levels = counts.astype(np.float64), ends, levels
        below = np.concatenate([[0.0], np.cumsum(self.counts)])
        filled = np.concatenate([[0], np.cumsum(counts > 0)])
        self.total = below[-1]
        self.inside = below[ends]
        self.beyond = self.total - self.inside
        self.edges = (np.arange(levels + 1) * ends[:, None] + levels - 1) // levels
        self.levels = np.diff(below[self.edges], axis=1)
        self.spread = self.levels / np.maximum(np.diff(filled[self.edges], axis=1), 1)
        self.last = self.counts[ends - 1]

    def sum_p_log_p(self) -> Array:
        """Of counts, not of shares."""
        below = np.concatenate([[0.0], np.cumsum(_x_log_x(self.counts))])
        return np.asarray(below[self.ends] - _x_log_x(self.last) + _x_log_x(self.last + self.beyond))

    def sum_q_log_q(self) -> Array:
        return np.asarray((self.levels * _log(self.spread)).sum(axis=1))

    def forward(self) -> Array:
        """Kullback and Leibler's divergence of Q from P: sum of p * log(p / q)."""
        crossed = self.sum_q_log_q() + self.beyond * _log(self.spread[:, -1])
        found = (self.sum_p_log_p() - crossed) / self.total - np.log(self.total) + _log(self.inside)
        return np.where((self.last == 0) & (self.beyond > 0), np.inf, found)

    def backward(self) -> Array:
        """That of P from Q: sum of q * log(q / p)."""
        below = np.concatenate([[0.0], np.cumsum(_log(self.counts))])
        crossed = (self.spread * np.diff(below[self.edges], axis=1)).sum(axis=1)
        crossed += np.where(self.last > 0, self.spread[:, -1] * (_log(self.last + self.beyond) - _log(self.last)), 0.0)
        return np.asarray((self.sum_q_log_q() - crossed) / np.maximum(self.inside, 1) - _log(self.inside) + np.log(self.total))

    def jensen_shannon(self) -> Array:
        """Jensen and Shannon's: the mean of the divergences of (P + Q) / 2 from both; finite in any case."""
        share_p = self.sum_p_log_p() / self.total - np.log(self.total)
        share_q = self.sum_q_log_q() / np.maximum(self.inside, 1) - _log(self.inside)
        return np.asarray((share_p + share_q) / 2 - np.array([self._sum_m_log_m(row) for row in range(self.ends.size)]))

    def _sum_m_log_m(self, row: int) -> float:
        """Sum of m * log(m) for m = (p + q) / 2."""
        end = int(self.ends[row])
        p = self.counts[:end].copy()
        q = np.repeat(self.spread[row], np.diff(self.edges[row])) * (p > 0) / max(self.inside[row], 1.0)
        p[-1] += self.beyond[row]
        return float(_x_log_x((p / self.total + q) / 2).sum())


def _log(values: Array) -> Array:
    """The logarithm, and 0 of 0."""
    return np.asarray(np.log(np.where(values > 0, values, 1.0)))


def _x_log_x(values: Array) -> Array:
    return np.asarray(values * _log(values))


def _widest(ends: Array, divergences: Array) -> int:
    """The number of bins with the smallest divergence, of equal ones the largest: data of a few values, such as pixels, leave several
    without any divergence but rounding."""
    return int(ends[np.flatnonzero(divergences <= divergences.min() + _EQUAL)[-1]])


class _Divergence(Counted):
    """Takes the threshold with the smallest divergence; clips the range of all values to it.

    Args:
        levels: of one sign: 128 of 8 bits. Unsigned quantizations of values that are never negative have 256.
    """

    def __init__(self, levels: int = 128) -> None:
        super().__init__()
        require_between("levels", levels, 2, HALF // 2)
        self.levels = levels

    def range(self) -> Range:
        counts, width = self.fold_to_absolute()
        if counts.size <= self.levels:
            return self.clip_to_threshold(np.inf)
        counts = counts.copy()
        counts[0] = counts[1]
        kept = int(np.searchsorted(np.cumsum(counts), _KEPT * counts.sum())) + 1
        ends = self._candidates(counts, max(self.levels, kept))
        found = self._divergence(Split(counts, ends, self.levels))
        best = _widest(ends, found)
        return self.clip_to_threshold(np.inf if best == counts.size else (best + 0.5) * width)

    def _candidates(self, counts: Array, least: int) -> Array:
        """Numbers of bins to try, from the least one to all."""
        return np.arange(least, counts.size + 1)

    @abstractmethod
    def _divergence(self, split: Split) -> Array:
        """Of each candidate."""


class Entropy(_Divergence):
    """Kullback and Leibler's divergence of the quantized values from the real ones: TensorRT's entropy calibration."""

    def _divergence(self, split: Split) -> Array:
        return split.forward()


class SymmetricEntropy(_Divergence):
    """The sum of the divergences in both directions (Jeffreys), which punishes lost tails less than Entropy does."""

    def _divergence(self, split: Split) -> Array:
        return split.forward() + split.backward()


class JensenShannon(_Divergence):
    """Jensen and Shannon's divergence (J. Lin, 1991): symmetric, and finite where a bin is empty on one side."""

    #: One candidate in so many is tried, then all around the best one: bins are summed one by one here.
    stride = 8

    def _candidates(self, counts: Array, least: int) -> Array:
        coarse = np.unique(np.append(np.arange(least, counts.size + 1, self.stride), counts.size))
        best = _widest(coarse, Split(counts, coarse, self.levels).jensen_shannon())
        return np.arange(max(best - self.stride + 1, least), min(best + self.stride, counts.size + 1))

    def _divergence(self, split: Split) -> Array:
        return split.jensen_shannon()


#: How many places an end is tried at, and then how many in each of the two parts around the best one.
COARSE, FINE = 64, 16


class SquaredError(Counted):
    """Searches both ends of the range, one after the other, for the smallest error of the counted values with the quantization that comes
    of it.

    A symmetric quantization has one end to be searched. Values stand for the middle of their bins. An end is found to 1/1024 of the largest
    value on its side. The objective is that of pytorch-quantization's "mse" and of M. Nagel et al., "A White Paper on Neural Network
    Quantization" (2021, section 3.1), which search symmetric thresholds.

    Args:
        bits: of the affine quantization that range() is for; quantization() takes those of its type.
    """

    def __init__(self, bits: int = 8) -> None:
        super().__init__()
        require_between("bits", bits, 2, 16)
        self.bits = bits

    def range(self) -> Range:
        return self._affine(2**self.bits - 1)

    def quantization(self, dtype: str = "int8", *, symmetric: bool = False, narrow: bool = False) -> QParams:
        low, high = integer_range(dtype)
        found = self._symmetric(high - low, narrow) if symmetric else self._affine(high - low)
        return quantization_of(found, dtype, symmetric=symmetric, narrow=narrow)

    def _bins(self) -> tuple[Array, Array]:
        """The middles of the bins that are in use, and their shares of all values."""
        counts, edges = self.histogram()
        used = np.flatnonzero(counts)
        return np.clip((edges[used] + edges[used + 1]) / 2, self.lowest, self.highest), counts[used] / max(self.count, 1)

    def _symmetric(self, steps: int, narrow: bool) -> Range:
        bins, codes = self._bins(), steps // 2
        best = _search(self.absmax, lambda ends: _errors(*bins, ends / codes, np.full(ends.size, steps - codes - narrow), steps - narrow))
        return self.clip_to_threshold(best)

    def _affine(self, steps: int) -> Range:
        bins = self._bins()
        low, high = min(self.lowest, 0.0) if self.count else 0.0, max(self.highest, 0.0) if self.count else 0.0

        def of(lows: Array, highs: Array) -> Array:
            scales = (highs - lows) / steps
            return _errors(*bins, scales, np.rint(-lows / scales), steps)

        best_high = _search(high, lambda ends: of(np.full(ends.size, low), ends))
        best_low = _search(low, lambda ends: of(ends, np.full(ends.size, best_high)))
        if best_low != low:
            best_high = _search(high, lambda ends: of(np.full(ends.size, best_low), ends))
        return Range(np.array([best_low]), np.array([best_high]))


def _search(end: float, errors: Callable[[Array], Array]) -> float:
    """The place between 0 and an end of a range with the smallest error; of equal ones the farthest from 0."""
    if not end:
        return end
    step = end / COARSE
    tried = step * np.arange(COARSE, 0, -1)
    best = float(tried[int(np.argmin(errors(tried)))])
    around = best + step * np.arange(FINE - 1, -FINE, -1) / FINE
    tried = around[(np.abs(around) <= abs(end)) & (around * end > 0)]
    return float(tried[int(np.argmin(errors(tried)))])


def _errors(values: Array, shares: Array, scales: Array, zero_points: Array, steps: int) -> Array:
    """The mean squared error on each of several quantizations with the codes 0 to `steps`."""
    found = np.empty(scales.size)
    for i, (scale, zero_point) in enumerate(zip(scales, zero_points, strict=True)):
        codes = np.clip(np.rint(values / scale) + zero_point, 0, steps)
        found[i] = shares @ np.square(values - (codes - zero_point) * scale)
    return found


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
    require_word("the calibration method", method, METHODS, "unknown-method")
    found = METHODS[method]
    given = {**(found.of_inputs if of_input else {}), **check_options(options, found.options, f"no calibration by {method}")}
    return partial(found.observer, **fill_defaults(given, found.options))
