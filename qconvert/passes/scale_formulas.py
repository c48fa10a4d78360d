"""Scales by the formulas of other tools: powers of two, and Google's.

power_of_two: scales become powers of two and zero points 0, as Cambricon's and other shift-only hardware wants them. Not exact.

scale = 2**position, and by the formula position = floor(log2(largest magnitude)) - (bits - 2) ("cambricon" of arithmetic/preparation.py, as
OneFlow calls it): the next power of two that holds the range but for less than a step. `rounding` says otherwise: nearest takes the power
of two that is nearest to the largest magnitude / 127, which may clip; mse the one with the smallest mean square error over the codes of an
activation, or over the weights. Unsigned quantizations get the zero point in the middle of their type, but those from zero on keep 0 and
use the bit of the sign. Weights whose scale is a power of two already keep their integers, channel by channel; the others get a scale for
each channel, or, with granularity tensor, one.

google_scales: the scales that the "google" formulas give for the range of each quantization. Not exact.

OneFlow, TensorFlow's training and others compute them from observed ranges (arithmetic/preparation.py): symmetric
scale = largest magnitude / (2**(bits - 1) - 1) with zero point 0; affine scale = (largest - smallest) / (2**bits - 1) with zero point
-round(smallest / scale), of a range that holds zero. By default signed types get the symmetric formula and unsigned ones the affine one;
`scheme` gives all types one of them. A symmetric quantization stands for the range up to its largest integer, without the lowest one, so
a quantization that a formula gave stays as it is. Weights get the symmetric formula, those with the zero point 0 keep their integers.
"""

from __future__ import annotations

import math

import numpy as np

from qconvert.arithmetic import affine_range, choose_quantization, dequantize
from qconvert.arithmetic.storage import bit_width
from qconvert.graph import Array, Graph, Quantization, Tensor, integer_range
from qconvert.passes.linear import WeightUse
from qconvert.passes.quantizations.scales_and_costs import middle
from qconvert.passes.quantizations.weights_and_networks import (
    Channel,
    Rescaled,
    Scaling,
    requantize_network,
    rescale_symmetric,
    symmetric_limits,
)
from qconvert.passes.stored_types import SIGNED
from qconvert.plugins import PassResult, Target

#: How many positions below the formula's are tried: each finer one clips half of the range more.
_TRIED = 3


def power_of_two(graph: Graph, target: Target | None, rounding: str = "up", granularity: str = "axis", edges: str = "keep") -> PassResult:
    """Change weights, then activations of 4, 8 and 16 bits, and biases with them."""
    return requantize_network(
        graph,
        lambda use, tensor: _rescale_to_powers(use, tensor, rounding, granularity),
        lambda dtype, q: _choose_power_of_two(dtype, q, rounding),
        suffix="power_of_two",
        words=("have powers of two as scales", "have powers of two as scales and no zero point"),
        edges=edges,
    )


def _position(values: Array, limits: tuple[int, int], rounding: str) -> int:
    """Return the exponent of the scale for float values.

    Args:
        values: real.
        limits: of the integers, less the zero point.
        rounding: up, nearest or mse.
    """
    largest = float(np.abs(values).max(initial=0.0))
    if not largest:
        return 0
    bits = (limits[1] + 1).bit_length()
    of_8_bits = math.log2(float(choose_quantization("cambricon", 0, largest)[1].scale[0]))
    formula = round(of_8_bits) - (bits - 8)
    if rounding == "nearest":
        return round(math.log2(largest / limits[1]))
    if rounding == "mse":
        tried = range(formula - _TRIED, formula + 1)
        return min(reversed(tried), key=lambda position: _loss(values, 2.0**position, limits))
    return formula


def _loss(values: Array, scale: float, limits: tuple[int, int]) -> float:
    return float(np.square(np.clip(np.rint(values / scale), *limits) * scale - values).sum())


def _choose_power_of_two(dtype: str, q: Quantization, rounding: str) -> tuple[str, Quantization] | None:
    """Return the quantization of an activation; None where it is such a one, or has several scales."""
    if not q.is_per_tensor:
        return None
    low, high = integer_range(dtype)
    point = low if float(affine_range(q, dtype)[0][0]) >= 0 and low == 0 else middle(dtype)
    if is_power_of_two(q.step) and q.point == point:
        return None
    lowest, highest = q.limits(dtype)
    values = dequantize(np.arange(lowest, highest + 1), q)
    return dtype, Quantization.per_tensor(2.0 ** _position(values, (low - point, high - point), rounding), point)


def _rescale_to_powers(use: WeightUse, weights: Tensor, rounding: str, granularity: str) -> Rescaled | None:
    low, high = integer_range(weights.dtype)
    limits = (low - middle(weights.dtype), high - middle(weights.dtype))
    return rescale_symmetric(use, weights, limits, _scaling(limits, rounding), granularity)


def _scaling(limits: tuple[int, int], rounding: str) -> Scaling:
    def scaling(channel: Channel) -> float | None:
        fits = channel.steps.min() >= limits[0] and channel.steps.max() <= limits[1]
        if is_power_of_two(channel.scale) and fits:
            return None
        return 2.0 ** _position(channel.steps * channel.scale, limits, rounding) / channel.scale

    return scaling


def is_power_of_two(scale: float) -> bool:
    """Whether a positive number is a power of two."""
    return math.frexp(scale)[0] == 0.5


#: What scales may differ by, as a share, and still be the formula's: a few roundings to float32.
_SAME = 1e-6


def google_scales(graph: Graph, target: Target | None, scheme: str = "types", granularity: str = "axis", edges: str = "keep") -> PassResult:
    """Change weights, then activations of 4, 8 and 16 bits, and biases with them."""
    return requantize_network(
        graph,
        lambda use, tensor: _rescale_by_formula(use, tensor, granularity),
        lambda dtype, q: _choose_by_formula(dtype, q, scheme),
        suffix="google",
        words=("have the scales of the google formula", "have the scales of the google formulas"),
        edges=edges,
    )


def _choose_by_formula(dtype: str, q: Quantization, scheme: str) -> tuple[str, Quantization] | None:
    """Return the formula's quantization for the range of another; None where that is the formula's, or has several scales."""
    if not q.is_per_tensor:
        return None
    (lowest,), (highest,) = affine_range(q, dtype)
    point, bits = q.point, bit_width(dtype)
    if scheme == "symmetric" or (scheme == "types" and integer_range(dtype)[0] < 0):
        if point == middle(dtype):
            return None
        found = choose_quantization("google_symmetric", lowest, highest, bits, dtype=SIGNED.get(dtype, dtype))[1]
        found = found.shift_zero_point(middle(dtype))
    else:
        found = choose_quantization("google_affine", lowest, highest, bits, dtype=dtype)[1]
    if abs(found.step / q.step - 1) < _SAME and found.point == point:
        return None
    return dtype, found


def _rescale_by_formula(use: WeightUse, weights: Tensor, granularity: str) -> Rescaled | None:
    """Return weights of the symmetric formula; scales with the zero point 0 stay unless several shall become one."""
    limits = symmetric_limits(weights.dtype)
    joins = granularity == "tensor" and weights.require_quantization().axis is not None

    def scaling(channel: Channel) -> float | None:
        largest = float(np.abs(channel.steps).max())
        return None if (channel.zero_point == 0 and not joins) or not largest else largest / limits[1]

    return rescale_symmetric(use, weights, limits, scaling, granularity)
