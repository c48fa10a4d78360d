"""Requantization as a multiplier and shifts, step by step, and the proof of where two requantizations differ.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference" (arXiv 1712.05877),
section 2.2, for the multiplier; gemmlowp, fixedpoint/fixedpoint.h, and TFLite, kernels/internal/common.h, for two roundings, the second
away from zero; TFLITE_SINGLE_ROUNDING there for one, ties up. TVM's qnn.requantize has one as well (relay/qnn/utils.cc, computed in int64):
UPWARD with ties up, TONEAREST with ties away from zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.arithmetic.requantize import quantize_multiplier
from qconvert.errors import OptionError

__all__ = ["FIXED_POINT_ROUNDINGS", "Difference", "FixedPoint", "compare_requantizations"]

#: "single": one shift, ties up. "away": one shift, ties away from zero. "double": the high half of a product, ties up, then a shift, ties
#: away from zero.
FIXED_POINT_ROUNDINGS = ("single", "away", "double")
_BITS = 31
_Requantized = Callable[[Array], Array]


@dataclass(frozen=True, slots=True, eq=False)
class FixedPoint:
    """What an accumulator goes through, in int64: times `multiplier`, plus `half`, and shifted to the right by `shift`; then, if there
    are any, plus `second_half`, and shifted by `second_shift`. Where ties fall away from zero, what is negative is made less by 1 before.

    All are int64, of the shape of the scales that they are made of.

    Attributes:
        multiplier: with the shift to the left of multipliers above 1 in it, where there are two roundings.
        half: half of a step of the first shift.
        shift: from 1 to 62.
        second_half, second_shift: likewise of the second, 0 where there is none; its ties fall away from zero.
        is_away: whether those of the first do.
    """

    multiplier: Array
    half: Array
    shift: Array
    second_half: Array
    second_shift: Array
    is_away: bool = False

    @classmethod
    def of(cls, scale: Any, rounding: str = "single") -> FixedPoint:
        """The steps for real multipliers.

        Args:
            scale: input scales over output scale, float64, any shape; see effective_scale().
            rounding: one of FIXED_POINT_ROUNDINGS.

        Raises:
            OptionError: there is no such rounding, or a multiplier is no positive number below 2**30.
        """
        scale = np.asarray(scale, np.float64)
        if rounding not in FIXED_POINT_ROUNDINGS:
            raise OptionError(
                f"the rounding of fixed point is {rounding!r}, which is unknown",
                remedy=f"Use {' or '.join(FIXED_POINT_ROUNDINGS)}.",
                rule="unknown-rounding",
            )
        if not ((scale > 0) & (scale < 2.0 ** (_BITS - 1))).all():
            raise OptionError(
                f"the multiplier is {scale}, which has no fixed-point form",
                remedy="Use positive scales whose quotient is below 2**30.",
                rule="multiplier-out-of-range",
            )
        found, exponent = quantize_multiplier(scale)
        multiplier, none = found.astype(np.int64), np.zeros(scale.shape, np.int64)
        if rounding != "double":
            shift = _BITS - exponent
            return cls(multiplier, np.int64(1) << (shift - 1), shift, none, none, rounding == "away")
        second = np.maximum(-exponent, 0)
        whole = none + _BITS
        return cls(multiplier << np.maximum(exponent, 0), np.int64(1) << (whole - 1), whole, (np.int64(1) << second) >> 1, second)

    def __call__(self, acc: Any) -> Array:
        """Steps of the output, int64, of accumulators, which broadcast against the multipliers. The zero point is still to be added."""
        product = np.asarray(acc, np.int64) * self.multiplier
        steps = np.asarray((product - (self.is_away & (product < 0)) + self.half) >> self.shift)
        second = (steps + self.second_half - ((steps < 0) & (self.second_shift > 0))) >> self.second_shift
        return np.asarray(second)

    @property
    def largest(self) -> int:
        """The largest magnitude of an accumulator for which no product leaves int64, and none that kernels shift to the left int32."""
        half, multiplier = int(self.half.max(initial=1)), int(self.multiplier.max(initial=1))
        left = max(0, multiplier.bit_length() - _BITS)
        return min((1 << _BITS) >> left, (2**63 - 1 - half) // max(1, multiplier))


@dataclass(frozen=True, slots=True)
class Difference:
    """How two requantizations compare over every accumulator.

    Attributes:
        differing: accumulators, of all channels, with another integer.
        total: accumulators between the ends of the results' range, where not all are one limit.
        examples: for the first few channels that differ: (channel, accumulator, the first's integer, the second's).
    """

    differing: int
    total: int
    examples: tuple[tuple[int, int, int, int], ...] = ()


def compare_requantizations(
    first: _Requantized, second: _Requantized, limits: tuple[int, int], low: Any, high: Any, scale: Any
) -> Difference:
    """Compares two requantizations for every accumulator of every channel, without trying them all where they are many.

    Both never fall, so each is its thresholds: for each integer that is not the last, the accumulator where the next one begins. Where
    these are equal, at most 255 of 8 bits, all results are. The search stops only where the function itself confirms a threshold:
    below the integer at one accumulator, and above it at the next.

    Args:
        first, second: accumulators, int64, of shape (channels, n) -> steps with the zero point, not yet limited; neither falls.
        limits: the lowest and highest integer of the result.
        low, high: the range of accumulators, inclusive: int64, one or one for each channel.
        scale: where a threshold lies about: steps for an accumulator, one or one for each channel; only the speed depends on it.
    """
    scale = np.atleast_1d(np.asarray(scale, np.float64)).reshape(-1, 1)
    low, high = (np.broadcast_to(np.asarray(end, np.int64).reshape(-1, 1), scale.shape) for end in (low, high))
    if int((high - low).max()) <= limits[1] - limits[0]:
        return _compare_exhaustively(first, second, limits, low, high)
    steps = np.arange(limits[0], limits[1], dtype=np.int64)[None, :]
    zero = first(np.zeros(scale.shape, np.int64))
    guess = np.clip((steps - zero + 0.5) / scale, low, high + 1).astype(np.int64)
    found = [_thresholds(function, steps, low, high, guess) for function in (first, second)]
    apart = np.abs(found[0] - found[1])
    examples = []
    for channel in np.flatnonzero(apart.any(axis=1))[:4]:
        place = int(np.argmax(apart[channel] > 0))
        acc = np.broadcast_to(min(item[channel, place] for item in found), scale.shape)
        a, b = (int(np.clip(function(acc), *limits)[channel, 0]) for function in (first, second))
        examples.append((int(channel), int(acc[0, 0]), a, b))
    return Difference(int(apart.sum()), int((found[0][:, -1] - found[0][:, 0]).sum()), tuple(examples))


def _compare_exhaustively(
    first: Callable[[Array], Array], second: Callable[[Array], Array], limits: tuple[int, int], low: Array, high: Array
) -> Difference:
    """The same by trying every accumulator."""
    acc = low + np.arange(int((high - low).max()) + 1)[None, :]
    a, b = (np.clip(function(np.minimum(acc, high)), *limits) for function in (first, second))
    apart = np.where(acc <= high, np.abs(a - b), 0)
    places = [(int(channel), int(np.argmax(apart[channel] > 0))) for channel in np.flatnonzero(apart.any(axis=1))[:4]]
    examples = tuple((channel, int(acc[channel, i]), int(a[channel, i]), int(b[channel, i])) for channel, i in places)
    inside = (acc <= high) & (a > limits[0]) & (a < limits[1])
    return Difference(int(apart.sum()), int(inside.sum()), examples)


def _thresholds(function: _Requantized, steps: Array, low: Array, high: Array, guess: Array) -> Array:
    """For each step the first accumulator from `low` on beyond it, or high + 1; bisected between two that enclose it."""
    below, above = low - 1 + 0 * guess, high + 1 + 0 * guess  # the step is not passed at `below`, and is at `above`
    width = 1
    while True:  # enclose
        left, right = np.maximum(guess - width, below), np.minimum(guess + width, above)
        beyond = (right > high) | (function(np.clip(right, low, high)) > steps)
        short = (left < low) | (function(np.clip(left, low, high)) <= steps)
        if (beyond & short).all() or width > 2**33:
            break
        width *= 16
    below, above = np.where(short, left, below), np.where(beyond, right, above)
    while (above - below > 1).any():
        middle = below + ((above - below) >> 1)
        passed = function(np.clip(middle, low, high)) > steps
        passed = np.where(middle < low, False, np.where(middle > high, True, passed))
        below, above = np.where(passed, below, middle), np.where(passed, middle, above)
    return np.asarray(above)
