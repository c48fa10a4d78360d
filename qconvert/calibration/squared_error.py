"""The range whose quantization gives the smallest mean squared error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.calibration.histograms import Counted
from qconvert.calibration.observer import require_between
from qconvert.encodings import QParams, Range, quantization_of
from qconvert.graph import Array, integer_range

__all__ = ["SquaredError"]

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
