"""Rescaling of integers by fixed-point multipliers, written in float64: equal to TFLite's MultiplyByQuantizedMultiplier in every bit.

A product of an accumulator and a multiplier is exact in float64 where both have 53 bits together: kernels that compute their multipliers in
float32 have 24. Other products are computed in int64, which is slower. The second rounding, half away from zero, is Round after a factor a
little above one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from qconvert.arithmetic import quantize_multiplier
from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder
from qconvert.graph import Array

__all__ = ["AWAY", "Emitter", "Rescale"]

#: Rounds ties of a number of 32 bits away from zero, and changes no other rounding.
AWAY = 1 + 2.0**-32
#: Whole numbers up to which float64 holds all.
_EXACT = 2.0**53
#: Bits of a product of two int16, and of float64's whole numbers.
_PAIR_BITS, _EXACT_BITS = 30, 53


class Emitter(Protocol):
    """Where nodes go: the graph, or the body of a loop."""

    def node(self, op_type: str, inputs: list[str], outputs: int = 1, *, hint: str = "", **attributes: Any) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Rescale:
    """x * multiplier, rounded twice, as MultiplyByQuantizedMultiplier does: one factor, or one for each column.

    Attributes:
        multipliers: int64, with the shift to the left in them; their products are divided by 2**31.
        right: the shift to the right after that.
        in_floats: whether float64 holds every product; else int64 does.
    """

    multipliers: Array
    right: Array
    in_floats: bool

    @classmethod
    def of(cls, factors: Any, bound: Any) -> Rescale | None:
        """The steps for real multipliers of integers up to `bound`; None where a shifted integer may leave the kernel's int32."""
        found, shifts = quantize_multiplier(np.asarray(factors, np.float64))
        left, multipliers = np.maximum(shifts, 0), found.astype(np.int64)
        if (np.asarray(bound, np.float64) * 2.0**left > 2.0**31).any():
            return None
        fits = (np.asarray(bound, np.float64) * _odd_part(multipliers) < _EXACT).all()
        return cls(multipliers << left, np.maximum(-shifts, 0), bool(fits))

    @classmethod
    def of_pair(cls, factor: float) -> Rescale:
        """The steps for products of two int16, times a factor below 1: of 30 bits, next to 24 of the multiplier. Those that float64 would
        round are few, and mostly harmless."""
        multipliers, shifts = quantize_multiplier(np.float64(factor))
        return cls(multipliers.astype(np.int64), np.maximum(-shifts, 0), not _has_wrong_tie(int(multipliers)))

    def emit(self, b: Builder, to: Emitter, value: str, hint: str) -> str:
        """Adds the nodes after a float64 value; returns the result, float64 too."""
        steps = self._first(b, to, value, hint)
        if not self.right.any():
            return steps
        # After no shift the factor is 1: it would move whole numbers that are large.
        second = np.where(self.right > 0, 2.0**-self.right * AWAY, 1.0)
        return to.node("Round", to.node("Mul", [steps, b.const(second, f"{hint}/shift")], hint=hint), hint=hint)[0]

    def emit_up(self, b: Builder, to: Emitter, value: str, hint: str) -> str:
        """The same where the second rounding takes ties up, as ruy does."""
        steps = self._first(b, to, value, hint)
        if not self.right.any():
            return steps
        scaled = to.node("Mul", [steps, b.const(2.0**-self.right, f"{hint}/shift")], hint=hint)
        return to.node("Floor", to.node("Add", [*scaled, b.const(np.float64(0.5), f"{hint}/half")], hint=hint), hint=hint)[0]

    def _first(self, b: Builder, to: Emitter, value: str, hint: str) -> str:
        """The first rounding, halves up."""
        if self.in_floats:
            scaled = to.node("Mul", [value, b.const(self.multipliers * 2.0**-31, f"{hint}/multiplier")], hint=hint)
            return to.node("Floor", to.node("Add", [*scaled, b.const(np.float64(0.5), f"{hint}/half")], hint=hint), hint=hint)[0]
        wide = to.node("Cast", [value], hint=hint, to=ELEMENT_TYPES["int64"])
        product = to.node("Mul", [*wide, b.const(self.multipliers, f"{hint}/multiplier")], hint=hint)
        # Div of integers truncates: what it divides is made positive first.
        above = to.node("Add", [*product, b.const(np.int64(2**62 + 2**30), f"{hint}/above")], hint=hint)
        divided = to.node("Div", [*above, b.const(np.int64(2**31), f"{hint}/power")], hint=hint)
        back = to.node("Sub", [*divided, b.const(np.int64(2**31), f"{hint}/back")], hint=hint)
        return to.node("Cast", back, hint=hint, to=ELEMENT_TYPES["float64"])[0]


def _odd_part(multipliers: Array) -> Array:
    """The bits that count."""
    return np.asarray(multipliers // np.maximum(1, multipliers & -multipliers))


def _has_wrong_tie(multiplier: int) -> bool:
    """Whether float64 rounds a product of the multiplier and two int16, which has up to 61 bits, from below a half to it."""
    if not multiplier:  # of a factor below 2**-32
        return False
    odd = int(_odd_part(np.array(multiplier)))
    bits = 31 - (multiplier // odd).bit_length() + 1
    if odd.bit_length() + _PAIR_BITS <= _EXACT_BITS:
        return False
    just_below = (2 ** (bits - 1) - 1) * pow(odd, -1, 2**bits) % 2**bits
    values = np.arange(just_below - 2**_PAIR_BITS // 2**bits * 2**bits, 2**_PAIR_BITS, 2**bits, dtype=np.int64)
    found = np.floor(values * (multiplier * 2.0**-31) + 0.5) != (values * multiplier + 2**30) >> 31
    factors = np.arange(1, 2**15, dtype=np.int64)
    return any(bool(((abs(value) % factors == 0) & (abs(value) // factors < 2**15)).any()) for value in values[found])
