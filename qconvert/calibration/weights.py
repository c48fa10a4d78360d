"""Scales of weights: of the largest magnitude, of the smallest squared error, or of MNN's ADMM; per tensor or along an axis.

All are symmetric. Weights are known, so nothing is observed: each method is a function of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from qconvert.arithmetic import round_half_away
from qconvert.encodings import QParams
from qconvert.errors import InvalidModelError, OptionError, require_word
from qconvert.graph import Array, Quantization, integer_range

#: The steps between 1 and the smallest share of the largest magnitude that is tried as a scale, and the finer ones around the best.
COARSE, LOWEST, FINE = 32, 6, 8
#: Steps of least squares after that.
SETTLING = 8
#: MNN's iterations, and what it adds to divisors.
STEPS, EPSILON = 1000, np.float32(1e-9)
_F = np.float32


@dataclass(frozen=True, slots=True)
class WeightMethod:
    """A way to choose scales of weights.

    Attributes:
        name: as in `--weights`.
        summary: in one line.
        scales: (float32 weights of shape (channels, others), the largest integer) -> float32 scales, 0 for channels of zeros.
    """

    name: str
    summary: str
    scales: Callable[[Array, int], Array]


def weight_quantization(weights: Array, method: str = "max-abs", axis: int | None = 0, dtype: str = "int8") -> QParams:
    """The quantization of weights, without the lowest integer, as TFLite demands it of int8.

    Args:
        weights: float values.
        method: one of WEIGHT_METHODS.
        axis: the dimension of which each index gets a scale; None for one scale for all.
        dtype: a signed type.

    Raises:
        OptionError: there is no such method, or the type is none of signed integers.
        InvalidModelError: weights are NaN or infinite; who knows their name fills in `where`.
    """
    require_word("the method for weights", method, WEIGHT_METHODS, "unknown-method")
    low, high = integer_range(dtype)
    if low >= 0:
        raise OptionError(
            f"the type of weights is {dtype}; symmetric quantization requires a signed type",
            remedy="Use a signed type; a pass stores it as an unsigned one.",
            rule="not-symmetric",
        )
    weights = np.asarray(weights, _F)
    if not np.isfinite(weights).all():
        raise InvalidModelError("weights are NaN or infinite", remedy="Look for what went wrong in training.", rule="weights-not-finite")
    if axis is not None:
        axis %= weights.ndim
    rows = weights.reshape(1, -1) if axis is None else np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    scales = WEIGHT_METHODS[method].scales(rows, high)
    # Any scale fits a row of zeros; the largest scale of the other rows, unlike 1, keeps the steps of its bias small.
    scales = np.where(scales > 0, scales, scales.max(initial=0) or _F(1)).astype(_F)
    return QParams(dtype, Quantization(scales, np.zeros(scales.shape, np.int64), axis, 0, -high, high))


def _max_abs(rows: Array, high: int) -> Array:
    return np.asarray(_absmax(rows) / _F(high), _F)


def _absmax(rows: Array) -> Array:
    return np.asarray(np.abs(rows).max(axis=1, initial=0))


def _squared_error(rows: Array, high: int) -> Array:
    """Tries shares of the largest magnitude, then lets the best one settle in least squares, where neither step can lose."""
    whole = _max_abs(rows, high)
    coarse = np.arange(COARSE, LOWEST - 1, -1) / COARSE
    best = _best_shares(rows, whole, np.broadcast_to(coarse[:, None], (coarse.size, whole.size)), high)
    around = best + np.arange(FINE - 1, -FINE, -1)[:, None] / (FINE * COARSE)
    scales = (whole * _best_shares(rows, whole, np.minimum(around, 1.0), high))[:, None]
    for _ in range(SETTLING):
        integers = np.clip(np.rint(rows / np.where(scales > 0, scales, 1)), -high, high)
        products, squares = (np.einsum("rk,rk->r", integers, other, dtype=np.float64)[:, None] for other in (rows, integers))
        scales = np.where(squares > 0, products / np.where(squares > 0, squares, 1), scales)
    return np.asarray(scales[:, 0], _F)


def _best_shares(rows: Array, whole: Array, shares: Array, high: int) -> Array:
    """For each row, which of its shares (tries, rows) of its scale has the smallest error."""
    best, least = np.ones(whole.size), np.full(whole.size, np.inf)
    for share in shares:
        scale = (whole * share).astype(_F)[:, None]
        scale[scale == 0] = 1
        steps = rows / scale
        steps -= np.clip(np.rint(steps), -high, high)
        found = np.einsum("rk,rk->r", steps, steps, dtype=np.float64) * np.square(scale[:, 0].astype(np.float64))
        better = found < least
        best, least = np.where(better, share, best), np.where(better, found, least)
    return best


def _mnn_admm(rows: Array, high: int) -> Array:
    """MNN's tool rounds weights with their largest magnitudes before it looks at activations, and has ADMM look at what comes of it."""
    whole = (_absmax(rows) / _F(high))[:, None]
    steps = np.divide(rows, whole, where=whole > 0, out=np.zeros_like(rows))
    return admm_scales((round_half_away(steps) * whole).astype(_F), high)


def admm_scales(rows: Array, clamp: int) -> Array:
    """MNN's ADMM (tools/quantization/quantizeWeight.cpp, 3.6; C. Leng et al., "Extremely Low Bit Neural Network", 2018), bit for bit.

    1000 times: integers = round(weights / scale), half away from zero, clamped; scale = sum(weights * integers) / sum(integers ** 2), in
    float32, one after another, beginning with max|w| / (1.25 * clamp).

    Args:
        rows: float32, (channels, weights of a channel).
        clamp: the largest integer.
    """
    scales = (_absmax(rows).astype(np.float64) / (clamp * 1.25)).astype(_F)
    active = np.flatnonzero(scales > 0)
    columns = np.ascontiguousarray(np.abs(rows[active]).T)
    for _ in range(STEPS):
        if not active.size:
            break
        steps = columns / (scales[active] + EPSILON)
        integers = np.rint(steps)
        integers += steps - integers == _F(0.5)
        np.minimum(integers, _F(clamp), out=integers)
        # Sums along the first axis of several rows are row after row, in order; numpy sums in pairs along the last one alone.
        new = _sum_in_order(columns * integers) / (_sum_in_order(np.square(integers)) + EPSILON)
        moved = new != scales[active]
        scales[active] = new
        active, columns = active[moved], columns[:, moved]  # a scale that stays will stay
    return scales


def _sum_in_order(columns: Array) -> Array:
    """The float32 sum of each column, one element after another."""
    return np.asarray(np.add.accumulate(columns, axis=0, dtype=_F)[-1])


WEIGHT_METHODS: Mapping[str, WeightMethod] = {
    method.name: method
    for method in (
        WeightMethod("max-abs", "the largest magnitude gets the largest integer; MNN's MAX_ABS", _max_abs),
        WeightMethod("mse", "the scale with the smallest squared error", _squared_error),
        WeightMethod(
            "admm",
            "alternating least squares: the integers for a scale, then the scale for these integers",
            admm_scales,
        ),
        WeightMethod("mnn-admm", "ADMM as MNN's tool runs it, on weights that are already quantized, equal in every bit", _mnn_admm),
    )
}
