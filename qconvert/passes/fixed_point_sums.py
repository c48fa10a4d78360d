"""Sums and differences of two 8-bit tensors in fixed point: two multipliers, and one shift; or as TFLite's ADD and SUB have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.arithmetic import Difference, FixedPoint, dequantize, quantize
from qconvert.graph import Array, Graph, Op, Quantization, integer_range
from qconvert.kernels.accumulators import UnfitError, limits_of

__all__ = ["PairSum", "compare_pairs", "pair_sum_of"]

_BYTES = ("int8", "uint8")
#: By how many bits TFLite's kernels shift their data to the left (add.cc, sub.cc).
_LEFT = 20
_BITS = 30


@dataclass(frozen=True, slots=True, eq=False)
class PairSum:
    """What the integers of two operands less their zero points go through.

    Attributes:
        sign: 1 of a sum, -1 of a difference.
        multipliers: of either.
        rescaled: what either goes through then, or None.
        last: what the sum goes through.
        limits: the stored integers that the activation leaves.
    """

    sign: int
    multipliers: tuple[int, int]
    rescaled: tuple[FixedPoint, FixedPoint] | None
    last: FixedPoint
    limits: tuple[int, int]

    def __call__(self, first: Any, second: Any) -> Array:
        """Steps of the output, without its zero point."""
        terms = [np.asarray(steps, np.int64) * by for steps, by in zip((first, second), self.multipliers, strict=True)]
        if self.rescaled is not None:
            terms = [each(term) for each, term in zip(self.rescaled, terms, strict=True)]
        return self.last(terms[0] + self.sign * terms[1])


def pair_sum_of(graph: Graph, op: Op, rounding: str) -> PairSum | None:
    """The fixed point of an Add or Sub of 8-bit tensors with one scale each; None for other operators.

    Raises:
        UnfitError: it has another kernel's arithmetic, or its scales are too far apart.
    """
    sides = [graph[name] for name in (*op.inputs, *op.outputs)] if op.kind in ("Add", "Sub") else []
    quantizations = [tensor.quantization for tensor in sides if tensor.quantization is not None and tensor.quantization.is_per_tensor]
    if len(quantizations) != 3 or any(tensor.dtype not in _BYTES for tensor in sides):
        return None
    if op["arithmetic"]:
        raise UnfitError(f"it has the arithmetic of {op['arithmetic']}")
    sign, limits = 1 if op.kind == "Add" else -1, limits_of(op, sides[2])
    first, second, output = (float(quantization.scale[0]) for quantization in quantizations)
    if rounding != "double":
        shift = _BITS - int(np.frexp(max(first, second) / output)[1])
        if not 1 <= shift <= 62:
            raise UnfitError("its multiplier has no fixed point")
        one, none = np.array(1, np.int64), np.zeros((), np.int64)
        last = FixedPoint(one, one << (shift - 1), one * shift, none, none, rounding == "away")
        return PairSum(sign, (round(first / output * 2.0**shift), round(second / output * 2.0**shift)), None, last, limits)
    common = 2 * max(first, second)
    factor = common / (2.0**_LEFT * output)
    if not 0 < factor < 1 or min(first, second) / common < 2.0**-31:
        raise UnfitError("its multiplier has no fixed point")
    rescaled = FixedPoint.of(first / common, rounding), FixedPoint.of(second / common, rounding)
    return PairSum(sign, (1 << _LEFT, 1 << _LEFT), rescaled, FixedPoint.of(factor, rounding), limits)


def compare_pairs(graph: Graph, op: Op, found: PairSum) -> tuple[Difference, tuple[int, int]]:
    """How a sum in fixed point compares with the exact one, for all 65,536 pairs; and the lowest and highest step of its result."""
    (a, b), result = (graph[name] for name in op.inputs), graph[op.outputs[0]]
    codes = [np.arange(low, high + 1) for low, high in (integer_range(tensor.dtype) for tensor in (a, b))]
    first, second = np.meshgrid(*codes, indexing="ij")
    quantizations = [tensor.quantization for tensor in (a, b, result) if tensor.quantization is not None]
    points = [int(quantization.zero_point[0]) for quantization in quantizations]
    real = dequantize(first, quantizations[0]) + found.sign * dequantize(second, quantizations[1])
    exact = np.clip(quantize(real, _drop_limits(quantizations[2]), result.dtype).astype(np.int64), *found.limits)
    decomposed = np.clip(found(first - points[0], second - points[1]) + points[2], *found.limits)
    inside = int(((exact > found.limits[0]) & (exact < found.limits[1])).sum())
    return Difference(int(np.abs(exact - decomposed).sum()), inside), (int(exact.min()) - points[2], int(exact.max()) - points[2])


def _drop_limits(quantization: Quantization) -> Quantization:
    """The quantization without limits of its own, which are among those of the sum."""
    return Quantization(quantization.scale, quantization.zero_point)
