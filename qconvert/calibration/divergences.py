"""Thresholds that keep the distribution of absolute values: the divergence between them and what few levels leave of them is smallest.

The search is that of TensorRT's calibrator (S. Migacz, "8-bit Inference with TensorRT", GTC 2017): for each number of bins i, P is the
histogram of the first i bins, with everything beyond added to the last of them; Q is the same bins without that, spread evenly over the
non-empty bins of each of 128 levels. The first i with the smallest divergence from the upper end wins, and the threshold is (i + 1/2) bins.
Only candidates that keep 99% of the values are tried: where the first filled bin is the last one of a candidate, P and Q are one spike, and
their divergence is 0 although every value is clipped (NVIDIA's search has the same fault).

What the slides leave open is done as NVIDIA's pytorch-quantization does it: bin k belongs to level floor(k * levels / i), the first bin,
which holds the zeros of Relus, counts as much as the second, and i goes up to all bins. A P whose last bin Q lacks has no finite
divergence of Kullback and Leibler.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from qconvert.calibration.histograms import HALF, Counted
from qconvert.calibration.observer import require_between
from qconvert.encodings import Range
from qconvert.graph import Array

__all__ = ["Entropy", "JensenShannon", "SymmetricEntropy"]


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
