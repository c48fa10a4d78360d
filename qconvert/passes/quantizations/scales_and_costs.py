"""Scales: the finest that holds a range, and the one that loses least of given values; and what a change of quantizations costs a tensor:
weights by their values, activations over all codes of their quantization.
"""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import dequantize, quantize, scale_and_zero_point
from qconvert.graph import Array, Quantization, Tensor, integer_range
from qconvert.plugins import Cost

#: How many scales are tried, for values of 16 bits, for float values, and how many values are few.
_TRIED, _TRIED_OF_16_BITS, _TRIED_OF_REALS, _FEW = 256, 32, 128, 32
#: Ratios of small numbers, on which many of the old steps are steps of the new quantization too.
_SIMPLE = np.array([over / under for under in range(1, 5) for over in range(under, 8 * under + 1)])


def middle(dtype: str) -> int:
    """Return the zero point of a symmetric quantization: 0, or the middle of an unsigned type."""
    low, high = integer_range(dtype)
    return 0 if low < 0 else (high + 1) // 2


def fitting_quantization(lowest: float, highest: float, dtype: str, *, symmetric: bool) -> Quantization:
    """Return the finest quantization of a type that holds a range, and zero.

    Args:
        lowest, highest: of the real range.
        dtype: the storage type.
        symmetric: whether the zero point is the middle of the type.
    """
    low, high = integer_range(dtype)
    lowest, highest = min(lowest, 0.0), max(highest, 0.0)
    if symmetric:
        point = middle(dtype)
        return Quantization.per_tensor(float(np.float32(max(highest / (high - point), lowest / (low - point)))) or 1.0, point)
    scale = float(np.float32((highest - lowest) / (high - low))) or 1.0
    return Quantization.per_tensor(scale, int(np.clip(np.rint(low - lowest / scale), low, high)))


def least_loss_ratio(steps: Array, limits: tuple[int, int], *, simple: bool = False, tried_of_few: int = _TRIED) -> float:
    """Return the new scale over the old one with the smallest mean square error, of whole steps of the old one on a quantization of few
    integers.

    Tried are the old scale, which clips and leaves all else exact, the largest common divisor, and scales up to a little above the scale of
    the largest value, or half above it for few values.

    Args:
        steps: whole numbers: integers less their zero points; or, of several channels, real numbers of steps.
        limits: the smallest and the largest integer of the new quantization, less its zero point.
        simple: whether ratios of small numbers, such as 3 / 2, are tried too.
        tried_of_few: how many scales are tried for a channel of few values, as of a depthwise convolution, for which some scale comes close
            to all of them.
    """
    levels, counts = np.unique(steps, return_counts=True)
    if not levels.any():
        return 1.0
    if steps.dtype.kind == "f":
        return least_loss_scale(steps, limits)
    holding = max(levels[-1] / limits[1] if limits[1] else 1, levels[0] / limits[0] if limits[0] else 1)
    few, many = levels.size <= _FEW, levels.size > 1024
    tried, highest = (tried_of_few, 1.5) if few else (_TRIED_OF_16_BITS if many else _TRIED, 1.02)
    ratios = np.unique([1.0, float(np.gcd.reduce(np.abs(levels))), *np.linspace(1, highest * holding, tried), holding])
    if simple:
        ratios = np.unique([*ratios, *_SIMPLE[2 * holding >= _SIMPLE]])
    stored = np.clip(np.rint(levels / ratios[:, None]), *limits)
    return float(ratios[np.argmin(np.square(stored * ratios[:, None] - levels) @ counts)])


def least_loss_scale(values: Array, limits: tuple[int, int]) -> float:
    """Return the scale of the smallest mean square error for float values; many of them are counted in bins a 64th of a step wide.

    Args:
        values: real, not all zero.
        limits: the smallest and the largest integer, less the zero point.
    """
    holding = max(float(values.max(initial=0.0)) / limits[1], float(values.min(initial=0.0)) / min(limits[0], -1))
    bins, counts = np.unique(np.rint(values * (64 / holding)), return_counts=True)
    values, weights = (values.reshape(-1), np.ones(values.size)) if values.size <= bins.size else (bins * (holding / 64), counts)
    scales = np.linspace(0.25, 1.0, _TRIED_OF_REALS) * holding
    losses = [np.square(np.clip(np.rint(values / scale), *limits) * scale - values) @ weights for scale in scales]
    return float(scales[int(np.argmin(losses))])


def rounded_steps(steps: Array, ratio: float, limits: tuple[int, int]) -> Array:
    """Return steps with a quantization `ratio` times as coarse; their errors add up to no more than half a step if possible.

    Data after a Relu are positive, and neighbours are alike, so that errors of one sign would shift the whole channel. The values that
    are rounded the other way are those nearest to the middle between two steps.
    """
    exact = (steps / ratio).reshape(-1)
    stored = np.clip(np.rint(exact), *limits)
    error = stored - exact
    surplus = int(np.rint(error.sum()))
    sign = int(np.sign(surplus))
    free = np.flatnonzero((sign * error > 0) & (limits[0] <= stored - sign) & (stored - sign <= limits[1]))
    stored[free[np.argsort(-sign * error[free], kind="stable")][: abs(surplus)]] -= sign
    return np.asarray(stored.reshape(steps.shape))


def cost(name: str, real: Array, error: Array, step: Array) -> Cost | None:
    """Return what an error costs; None if there is none.

    Args:
        name: of the tensor.
        real: its float values before, in float64.
        error: of each.
        step: of the new quantization, one or one for each value.
    """
    signal, noise = (float(np.square(values).sum()) for values in (real, error))
    if not noise:
        return None
    return Cost(name, float(10 * np.log10(max(signal / noise, 1e-30))), float((np.abs(error) / step).max(initial=0.0)))


def tensor_cost(old: Tensor, new: Tensor) -> Cost | None:
    """Return what a quantized constant loses with a new quantization, by value; None if nothing."""
    real = old.float_values()
    step, _ = scale_and_zero_point(new.require_quantization(), real.shape)
    return cost(old.name, real, new.float_values() - real, step)


def activation_cost(name: str, old: Quantization, dtype: str, new: Quantization, stored: str = "") -> Cost | None:
    """Return what an activation loses if each code of its quantization goes through another quantization; None if nothing. Of several
    scales the worst counts.

    Args:
        name: of the activation.
        old: its quantization.
        dtype: of `old`; at most 16 bits.
        new: the other quantization, in `stored`, by default the same type; with one scale, or as many as `old`.
    """
    low, high = old.limits(dtype)
    codes = np.arange(low, high + 1, dtype=np.int64)
    found = []
    for index in range(old.scale.size):
        own = min(index, new.scale.size - 1)
        before, after = (
            Quantization.per_tensor(float(q.scale.reshape(-1)[place]), int(q.zero_point.reshape(-1)[place]))
            for q, place in ((old, index), (new, own))
        )
        limited = Quantization(after.scale, after.zero_point, quant_min=new.quant_min, quant_max=new.quant_max)
        real = dequantize(codes, before)
        found.append(cost(name, real, dequantize(quantize(real, limited, stored or dtype), after) - real, after.scale))
    return min((item for item in found if item is not None), key=lambda item: item.sqnr_db or 0.0, default=None)
