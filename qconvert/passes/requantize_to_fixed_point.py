"""requantize_to_fixed_point: sums of products become integers, and what brings them to the result's quantization a multiplier and shifts.

For targets without real numbers, and for generators of code that are to see each step. Conv, Gemm, MatMul, Mul and Requantize with results
of 8 bits become operators on plain integers, with int64 between; of Requantize those of 16 and 32 bits too:

    acc = ConvInteger(x, w) + bias      or MatMulInteger, or a product of differences, or a difference: zero points taken off
    steps = (acc * multiplier + half) >> shift                      fixed_point=single: ties up, as TFLITE_SINGLE_ROUNDING
    steps = (acc * multiplier + half - (acc < 0)) >> shift          fixed_point=away: ties away from zero, as TVM's TONEAREST
    steps = (steps + half - (steps < 0)) >> shift                   after the first with fixed_point=double: as gemmlowp, and TFLite
    y = Clip(steps + zero point, lowest, highest)

Add and Sub of 8 bits have a multiplier for either operand and one shift (PairSum); with fixed_point=double the shifts of TFLite's kernels.

Every accumulator that an operator can have is compared with the exact result, by the thresholds between integers, or by trying them all
where they are few (arithmetic/requantize.py): the note says how many operators are equal for every input, and of the others how many
accumulators differ. An operator stays as it is where its accumulator may leave int32, its bias is real, or the format has no such products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qconvert.arithmetic import Difference, FixedPoint, compare_requantizations, dequantize, quantize
from qconvert.errors import format_count
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range
from qconvert.kernels.accumulators import Accumulator, TooLargeError, UnfitError, accumulator_of
from qconvert.operators import kind_of
from qconvert.operators.call import activated_limits
from qconvert.operators.values import Value, Values, apply
from qconvert.plugins import Change, Cost, PassResult, Target, describe_worst, operators
from qconvert.rewriting import Rewriter

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
        """Return steps of the output, without its zero point."""
        terms = [np.asarray(steps, np.int64) * by for steps, by in zip((first, second), self.multipliers, strict=True)]
        if self.rescaled is not None:
            terms = [each(term) for each, term in zip(self.rescaled, terms, strict=True)]
        return self.last(terms[0] + self.sign * terms[1])


def pair_sum_of(graph: Graph, op: Op, rounding: str) -> PairSum | None:
    """Return the fixed point of an Add or Sub of 8-bit tensors with one scale each; None for other operators.

    Raises:
        UnfitError: it has another kernel's arithmetic, or its scales are too far apart.
    """
    sign = kind_of(op).sum_sign
    sides = [graph[name] for name in op.names] if sign else []
    quantizations = [found for tensor in sides if (found := tensor.per_tensor) is not None]
    if len(quantizations) != 3 or any(tensor.dtype not in _BYTES for tensor in sides):
        return None
    if op["arithmetic"]:
        raise UnfitError(f"it has the arithmetic of {op['arithmetic']}")
    limits = activated_limits(op, sides[2])
    first, second, output = (quantization.step for quantization in quantizations)
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
    """Return how a sum in fixed point compares with the exact one, for all 65,536 pairs; and the lowest and highest step of its result."""
    (a, b), result = (graph[name] for name in op.inputs), graph[op.name]
    codes = [np.arange(low, high + 1) for low, high in (integer_range(tensor.dtype) for tensor in (a, b))]
    first, second = np.meshgrid(*codes, indexing="ij")
    quantizations = [tensor.quantization for tensor in (a, b, result) if tensor.quantization is not None]
    points = [quantization.point for quantization in quantizations]
    real = dequantize(first, quantizations[0]) + found.sign * dequantize(second, quantizations[1])
    unlimited = Quantization(quantizations[2].scale, quantizations[2].zero_point)  # whose own limits are among those of the sum
    exact = np.clip(quantize(real, unlimited, result.dtype).astype(np.int64), *found.limits)
    decomposed = np.clip(found(first - points[0], second - points[1]) + points[2], *found.limits)
    inside = int(((exact > found.limits[0]) & (exact < found.limits[1])).sum())
    return Difference(int(np.abs(exact - decomposed).sum()), inside), (int(exact.min()) - points[2], int(exact.max()) - points[2])


def requantize_to_fixed_point(graph: Graph, target: Target | None, *, fixed_point: str = "single") -> PassResult:
    """Decompose what has an accumulator of integers; say what stays, and why."""
    known = operators(target.format, "write") if target is not None and target.format else None
    decomposition = _Decomposition(graph, fixed_point)
    stays: Counter[str] = Counter()
    for op in decomposition:
        try:
            found = accumulator_of(graph, op) or pair_sum_of(graph, op, fixed_point)
            needed = {"BitShift", found.kind if isinstance(found, Accumulator) and found.sums_products else "Clip"}
            if found is not None and known is not None and not needed <= known.keys():
                raise UnfitError(f"{target.format if target else ''} has no {' and '.join(sorted(needed - known.keys()))}")
            if isinstance(found, PairSum):
                decomposition.decompose_pair(op, found)
            elif found is not None:
                decomposition.decompose(op, found)
        except UnfitError as reason:
            stays[f"{op.kind}: {reason}"] += 1
    notes = tuple(f"{format_count(count, 'operator', 'stay')}, {reason}" for reason, count in stays.items())
    if not decomposition.differences:
        return graph, notes
    return decomposition.finish(), (*decomposition.changes(), *notes)


@dataclass(frozen=True, eq=False)
class _Steps(Values):
    """Integers of 64 bits in the place of an operator; a constant of equal elements that they are combined with is one.

    Attributes:
        rewriter: gets the operators.
        op: where they come from.
        like: the tensor whose shape they have, and after which they are named.
        name: of the tensor that holds them.
    """

    rewriter: Rewriter
    op: Op
    like: Tensor
    name: str

    def apply(self, kind: str, operands: Sequence[Value], attributes: Mapping[str, Any], outputs: int) -> _Steps:
        names = [item.name if isinstance(item, _Steps) else self._add_constant(kind, np.asarray(item, np.int64)) for item in operands]
        return replace(self, name=self.rewriter.compute_plain(kind, names, self.like, "int64", self.op.source, **attributes))

    def _add_constant(self, kind: str, values: Array) -> str:
        is_one = values.size and (values == values.flat[0]).all()
        return self.rewriter.shared_constant(f"{self.like.name}/{kind.lower()}", np.asarray(values.flat[0]) if is_one else values)


def _emit_fixed_point(value: _Steps, point: FixedPoint, along: Callable[[Array], Array] = np.asarray) -> _Steps:
    """Return the fixed point's steps, one after the other; `along` gives values for each output a shape that broadcasts."""
    value = value if (point.multiplier == 1).all() else value * along(point.multiplier)
    if point.is_away:  # less 1 where it is negative: plus all 64 bits of the sign
        value = value + _shift_right(value, np.array(63))
    value = _shift_right(value + along(point.half), along(point.shift))
    if not point.second_shift.any():
        return value
    sign = _shift_right(value, np.array(63))
    if not point.second_shift.all():
        sign = apply("BitwiseAnd", sign, -along(point.second_shift > 0).astype(np.int64))
    return _shift_right(value + sign + along(point.second_half), along(point.second_shift))


def _shift_right(value: _Steps, by: Array) -> _Steps:
    found: _Steps = apply("BitShift", value, by, direction="RIGHT")
    return found


class _Decomposition(Rewriter):
    """Operators on plain integers in the place of quantized ones.

    Attributes:
        differences: result -> how it compares with the exact one.
    """

    def __init__(self, graph: Graph, rounding: str) -> None:
        super().__init__(graph)
        self._rounding = rounding
        self._plain: dict[str, str] = {}
        self.differences: dict[str, Difference] = {}
        self._ends: dict[str, tuple[int, int]] = {}

    def changes(self) -> tuple[Change, ...]:
        """Return what was done: operators that are equal for every input, and the others with what they cost."""
        equal = sum(not difference.differing for difference in self.differences.values())
        roundings = f"a multiplier and {'two shifts' if self._rounding == 'double' else 'a shift'} of integers"
        text = f"{format_count(len(self.differences), 'requantization', 'are')} {roundings}"
        if equal == len(self.differences):
            return (Change(f"{text}, equal for every accumulator", exact=True),)
        costs = tuple(self._cost(name, found) for name, found in self.differences.items() if found.differing)
        of, total = (sum(getattr(found, word) for found in self.differences.values()) for word in ("differing", "total"))
        share = f"{of} of {total} accumulators ({100 * of / max(1, total):.2g}%) differ by one integer"
        return (Change(f"{text}, {equal} of them equal for every accumulator; {share}; {describe_worst(costs)}", costs=costs),)

    def _cost(self, name: str, difference: Difference) -> Cost:
        """Of a result, as if all integers that it can have were as likely."""
        low, high = self._ends[name]
        signal = (low + high) ** 2 / 4 + ((high - low + 1) ** 2 - 1) / 12  # the mean of the squares from low to high
        noise = difference.differing / max(1, difference.total)
        return Cost(name, float(10 * np.log10(max(signal, 1e-30) / noise)), 1.0)

    def decompose(self, op: Op, found: Accumulator) -> None:
        """Put a sum of integers and its fixed point in the place of an operator.

        Raises:
            UnfitError: its multipliers have no fixed point.
        """
        result = self.graph[op.name]
        quantization = result.require_quantization()
        output, zero_point = quantization.step, quantization.point
        ratio = found.multiplier(output, self._rounding == "double")
        if not ((ratio > 0) & (ratio < 2.0**30)).all():
            raise UnfitError("its multiplier has no fixed point")
        decomposed, each = FixedPoint.of(ratio, self._rounding), FixedPoint.of(ratio[:, None], self._rounding)
        if max(abs(int(found.low.min())), abs(int(found.high.max()))) > decomposed.largest:
            raise TooLargeError
        self.differences[result.name] = compare_requantizations(
            lambda acc: np.rint(acc * found.scale[:, None] / output).astype(np.int64) + zero_point,
            lambda acc: each(acc) + zero_point,
            found.limits, found.low, found.high, ratio,
        )  # fmt: skip
        lowest, highest = (limit - zero_point for limit in found.limits)
        reached = [np.clip(np.rint(end * found.scale / output), lowest, highest) for end in (found.low, found.high)]
        self._ends[result.name] = int(reached[0].min()), int(reached[1].max())
        acc = self._widen(op, self._sum(op, found, result), result)
        self._store(op, _emit_fixed_point(acc, decomposed, found.along), found.limits, result)

    def decompose_pair(self, op: Op, found: PairSum) -> None:
        """Put integers in fixed point in the place of a sum or a difference."""
        result = self.graph[op.name]
        self.differences[result.name], self._ends[result.name] = compare_pairs(self.graph, op, found)
        terms = []
        for index, name in enumerate(op.inputs):
            tensor = self.graph[name]
            point = tensor.require_quantization().zero_point.reshape(())
            term = self._widen(op, self._difference(name, op, point), tensor) * found.multipliers[index]
            terms.append(term if found.rescaled is None else _emit_fixed_point(term, found.rescaled[index]))
        total = apply(op.kind, replace(terms[0], like=result), terms[1])
        self._store(op, _emit_fixed_point(total, found.last), found.limits, result)

    def _widen(self, op: Op, name: str, like: Tensor) -> _Steps:
        return _Steps(self, op, like, self.compute_plain("Cast", (name,), like, "int64", op.source, to="int64"))

    def _store(self, op: Op, steps: _Steps, limits: tuple[int, int], result: Tensor) -> None:
        """Store steps with the zero point, limited, as the result in the place of the operator."""
        zero_point = result.require_quantization().point
        if zero_point:
            steps = steps + zero_point
        ends = (self.shared_constant(f"{result.name}/limit", np.array(limit, np.int64)) for limit in limits)
        limited = self.compute_plain("Clip", (steps.name, *ends), result, "int64", op.source)
        stored = self.compute_plain("Cast", (limited,), result, result.dtype, op.source, to=result.dtype)
        self.replace(op, op.derive("Reinterpret", (stored,), (result.name,)))

    def _sum(self, op: Op, found: Accumulator, result: Tensor) -> str:
        """Return the accumulators, int32."""
        if found.sums_products:
            data = self._reinterpret(op.inputs[0], op)
            points = (self.shared_constant(f"{result.name}/zero", np.array(point, dtype)) for point, dtype in found.zero_points)
            factor = (
                self._reinterpret(op.inputs[1], op)
                if found.weights is None
                else self.shared_constant(f"{op.inputs[1]}/integers", found.weights)
            )
            acc = self.compute_plain(found.kind, (data, factor, *points), result, "int32", op.source, **found.attributes)
        else:
            operands = [self._difference(name, op, point) for name, (point, _) in zip(op.inputs, found.zero_points, strict=True)]
            acc = operands[0] if len(operands) == 1 else self.compute_plain("Mul", tuple(operands), result, "int32", op.source)
        if found.bias is not None and found.bias.any():
            bias = self.shared_constant(f"{result.name}/bias", found.along(found.bias.astype(np.int32)))
            acc = self.compute_plain("Add", (acc, bias), result, "int32", op.source)
        return acc

    def _difference(self, name: str, op: Op, zero_point: Array) -> str:
        """Return an operand less its zero points, int32."""
        tensor = self.graph[name]
        if tensor.data is not None:
            return self.shared_constant(f"{name}/steps", tensor.data.astype(np.int32) - zero_point.astype(np.int32))
        wide = self.compute_plain("Cast", (self._reinterpret(name, op),), tensor, "int32", op.source, to="int32")
        if not zero_point.any():
            return wide
        return self.compute_plain(
            "Sub", (wide, self.shared_constant(f"{name}/zero", zero_point.astype(np.int32))), tensor, "int32", op.source
        )

    def _reinterpret(self, name: str, op: Op) -> str:
        """Return the stored integers of a tensor as plain ones."""
        if name not in self._plain:
            tensor = self.graph[name]
            self._plain[name] = self.compute_plain("Reinterpret", (name,), tensor, tensor.dtype, op.source)
        return self._plain[name]
