"""MNN's own choices of activation scales, bit for bit (tools/quantization/TensorStatistic.cpp, MNN 3.6; Apache-2.0).

Sums are float32 in the order of MNN's loops, quotients float32 or double as there. What MNN does not sum in plain order is said below.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from typing import NamedTuple, Self

import numpy as np

from qconvert.calibration.observer import Histogram, Observer, require_between
from qconvert.encodings import QParams, Range
from qconvert.graph import Array, Quantization, integer_range

#: Bins of the histogram, and levels that they are merged to.
BINS, LEVELS = 2048, 128
#: Channels that MNN stores together on x86-64, with and without AVX512 (measured: 3.6.1 of PyPI); 4 on ARM.
PACK = 8
#: Parts of the search, so that their arrays stay in the cache.
BLOCKS = 32
#: Iterations of ADMM, and how many values of one are summed at a time, so that they stay in the cache.
STEPS, CHUNK = 300, 1 << 14
_F = np.float32


class OfMnn(Observer):
    """A method that gives a scale. Zero points are 0, and integers lie between -clamp and clamp (`feature_clamp_value`)."""

    def __init__(self, clamp: int = 127) -> None:
        super().__init__()
        require_between("clamp", clamp, 1, 127)
        self.clamp = clamp

    @property
    @abstractmethod
    def scale(self) -> np.float32:
        """As it stands in MNN's dump; 0 for a tensor without values, or hardly any: MNN does not quantize it."""

    def range(self) -> Range:
        end = np.array([float(self.scale) * self.clamp])
        return Range(-end, end)

    def quantization(self, dtype: str = "int8", *, symmetric: bool = True, narrow: bool = True) -> QParams:
        """MNN's quantization, which is always symmetric and narrow; in an unsigned type the same one shifted."""
        low, high = integer_range(dtype)
        middle = 0 if low else (high + 1) // 2
        scale = np.array([self.scale or _F(1)], _F)
        limits = middle - self.clamp, middle + self.clamp
        return QParams(dtype, Quantization(scale, np.array([middle], np.int64), None, 0, *limits))


class MnnKl(OfMnn):
    """MNN's method KL: 2048 bins of absolute values over the largest of a first pass, and the threshold with the smallest divergence.

    Tensors with fewer than 100 values in a channel (height times width of NCHW) are not searched: their threshold is the last bin.
    """

    passes = 2

    def __init__(self, clamp: int = 127) -> None:
        super().__init__(clamp)
        self._counts = np.zeros(BINS, np.int64)
        self._plane = 0

    def _observe(self, values: Array, lowest: float, highest: float) -> None:
        self._plane = int(np.prod(values.shape[2:4]))
        if self.number:
            absolute = np.abs(values.reshape(-1))
            absolute = absolute[absolute > 1e-6]
            bins = np.minimum((absolute * self._interval).astype(np.intp), BINS - 1)
            self._counts += np.bincount(bins, minlength=BINS)

    def merge(self, other: Self) -> None:
        """Exact."""
        super().merge(other)
        self._counts = self._counts + other._counts
        self._plane = self._plane or other._plane

    @property
    def _interval(self) -> np.float32:
        """Bins for each unit; 0 where MNN takes no statistics."""
        absmax = _F(self.absmax)
        return _F(BINS) / absmax if absmax > _F(1e-5) else _F(0)

    @property
    def scale(self) -> np.float32:
        if not self._interval:
            return _F(0)
        threshold = BINS - 1 if self._plane < 100 else kl_threshold(self._counts)
        return _F((threshold + 0.5) / float(self._interval) / self.clamp)

    def histogram(self) -> Histogram | None:
        return Histogram(self._counts, np.arange(BINS + 1) / float(self._interval)) if self._counts.any() else None


class MnnAdmm(OfMnn):
    """MNN's method ADMM: alternates between integers and the scale that suits them best, in least squares, 300 times from a small scale.

    One sample counts, the last one; nothing else is kept. merge() takes the other's as the later one. Sums are in the order in which MNN
    stores a tensor of rank 4: `pack` channels together, so scales depend on the machine. MNN takes channels to be rounded up to 4 when it
    counts elements, and so leaves out the last planes of a tensor that it rounds up to more.

    Args:
        clamp: the largest integer.
        pack: channels that are stored together; 1 for a network's input, which is in plain order.
    """

    def __init__(self, clamp: int = 127, pack: int = PACK) -> None:
        super().__init__(clamp)
        require_between("pack", pack, 1, 64)
        self.pack = pack
        self._sample = np.zeros(0, _F)

    def _observe(self, values: Array, lowest: float, highest: float) -> None:
        packed = np.abs(packed_order(values, self.pack))
        self._sample = packed[packed > 0]  # zeros add nothing

    def merge(self, other: Self) -> None:
        """The other's sample is the later one."""
        super().merge(other)
        self._sample = other._sample if other.count else self._sample

    @property
    def scale(self) -> np.float32:
        return admm_scale(self._sample, self.clamp)


def packed_order(values: Array, pack: int) -> Array:
    """The elements of a tensor that MNN sums, in its order: of rank 4 (N, C / pack, H, W, pack), zeros between."""
    if values.ndim != 4 or pack == 1:
        return values.reshape(-1)
    n, c, h, w = values.shape
    padded = np.zeros((n, -(-c // pack) * pack, h, w), _F)
    padded[:, :c] = values
    ordered = padded.reshape(n, -1, pack, h, w).transpose(0, 1, 3, 4, 2).reshape(-1)
    return ordered[: n * (-(-c // 4) * 4) * h * w]


def admm_scale(absolute: Array, clamp: int) -> np.float32:
    """Alternates: integers = round(values / scale), half away from zero, clamped; scale = sum(integers * values) / sum(integers ** 2).

    Args:
        absolute: float32, without zeros, in the order of the sums.
        clamp: the largest integer.

    Returns:
        The scale; max|x| / clamp where sums leave float32.
    """
    if not absolute.size:
        return _F(0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scale = _iterate_admm(absolute, clamp)
    return scale if 0 < scale < np.inf else _F(absolute.max() / clamp)


def _iterate_admm(absolute: Array, clamp: int) -> np.float32:
    scale = _F(float(absolute.max()) / (clamp * 2.5))
    seen: dict[np.float32, int] = {}
    for step in range(STEPS):
        if scale in seen:  # from here on it repeats itself
            again = list(seen)[seen[scale] :]
            return again[(STEPS - step) % len(again)]
        seen[scale] = step
        products, squares = _sums(absolute, _F(1) / scale, _F(clamp))
        scale = products / squares
    return scale


def _sums(absolute: Array, inverse: np.float32, clamp: np.float32) -> tuple[np.float32, np.float32]:
    """Sums of integers * values and of integers ** 2, in order: as parts of complex numbers, so that both go at once."""
    total, pairs = np.complex64(0), np.empty(CHUNK + 1, np.complex64)
    for start in range(0, absolute.size, CHUNK):
        values = absolute[start : start + CHUNK]
        steps = values * inverse
        integers = np.rint(steps)
        steps -= integers
        integers += steps == _F(0.5)
        np.minimum(integers, clamp, out=integers)
        part = pairs[: values.size + 1]
        part[0] = total
        np.multiply(integers, values, out=part.real[1:])
        np.multiply(integers, integers, out=part.imag[1:])
        total = np.add.accumulate(part, out=part)[-1]
    return _F(total.real), _F(total.imag)


def _sum_in_order(values: Array) -> np.float32:
    """The float32 sum, one value after another."""
    return _F(np.add.accumulate(values, dtype=_F)[-1])


def kl_threshold(counts: Array) -> int:
    """The last of MNN's 2048 bins that is kept, 128 at least.

    For each number of bins, they are merged to 128 levels, bins on an edge in parts, and each level is spread evenly over its width again;
    the first number with the smallest sum of p * log(p / q) wins, p having what lies beyond in its last bin. Bins start at 1e-7 and are
    never empty, so each level is spread over all of its bins.
    """
    shares = _shares(counts)
    beyond = np.subtract.accumulate(np.concatenate([[_sum_in_order(shares[LEVELS:])], shares[LEVELS : BINS - 1]]), dtype=_F)
    parts = np.array_split(beyond, BLOCKS)
    found = np.concatenate([_divergences(shares, part, own) for part, own in enumerate(parts)])
    found = np.where(found < 10000, found, np.inf)  # NaN, of a negative rest beyond, is no candidate
    return LEVELS + int(np.argmin(found))


def _shares(counts: Array) -> Array:
    """What float32 bins that start at 1e-7 hold after so many times + 1, as shares of their sum."""
    # The small start survives the first + 1 alone, by one step of float32; from 2**24 on nothing is added any more.
    held = np.minimum(counts, 2**24).astype(_F)
    held[counts == 0] = _F(1e-7)
    held[counts == 1] = _F(1e-7) + _F(1)
    return np.asarray(held / _sum_in_order(held), _F)


class _Bins(NamedTuple):
    """Where the bins of several candidates lie, (bins, candidates). Edges of levels are multiples of 1/128, so float32 holds them.

    Attributes:
        levels: the first level of each bin, as an index into (candidates, levels + 1).
        first: how much of the bin lies in it; the rest lies in the next one.
        following: whether the bin is no longer the candidate's.
    """

    levels: Array
    first: Array
    following: Array


@cache
def _candidates(part: int) -> tuple[Array, _Bins]:
    """The numbers of bins in one of the parts of the search, and where their bins lie."""
    ends = np.array_split(np.arange(LEVELS, BINS), BLOCKS)[part]
    bins = np.arange(ends[-1])[:, None]
    levels = np.minimum(bins * LEVELS // ends, LEVELS - 1)
    first = np.minimum((levels + 1) * ends, (bins + 1) * LEVELS) - bins * LEVELS
    places = (levels + np.arange(ends.size) * (LEVELS + 1)).astype(np.int32)
    return ends, _Bins(places, first.astype(_F) / LEVELS, bins >= ends)


def _divergences(shares: Array, part: int, beyond: Array) -> Array:
    """Of each number of bins in one part of the search, with its share beyond."""
    ends, bins = _candidates(part)
    spread = np.pad(_average_levels(shares, ends), ((0, 0), (0, 1))).reshape(-1)
    expanded = spread.take(bins.levels) * bins.first + spread.take(bins.levels + 1) * (1 - bins.first)
    kept = np.repeat(shares[: ends[-1], None], ends.size, axis=1)
    kept[ends - 1, np.arange(ends.size)] += beyond
    with np.errstate(all="ignore"):
        # A float64 logarithm, rounded, is the nearest float32, as that of the C library nearly always is.
        terms = kept * np.log((kept / expanded).astype(np.float64)).astype(_F)
    terms[bins.following | (kept == 0)] = 0
    return np.asarray(np.add.reduce(terms, axis=0))  # row after row, in order


def _average_levels(shares: Array, ends: Array) -> Array:
    """What each level gives to each bin that it covers whole: the sum of its first part of a bin, its last part, and those between."""
    starts = np.arange(LEVELS + 1) * ends[:, None]
    first, last = -(-starts[:, :-1] // LEVELS), starts[:, 1:] // LEVELS  # whole bins
    sums = (first * LEVELS - starts[:, :-1]).astype(_F) / LEVELS * shares[first - 1]
    sums += (starts[:, 1:] - last * LEVELS).astype(_F) / LEVELS * shares[last]
    for step in range(int((last - first).max())):
        sums += np.where(first + step < last, shares[np.minimum(first + step, BINS - 1)], _F(0))
    return np.asarray(sums / (ends[:, None].astype(_F) / LEVELS))
