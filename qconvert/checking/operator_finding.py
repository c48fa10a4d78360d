"""Judges the two results of an operator, and adds findings for changed constants."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.checking.classify import classify, compare_inexact, resolve_runtime
from qconvert.checking.expected_values import (
    bound_cancellation,
    compute_overflow,
    exact_value,
    find_passed_inputs,
    is_score_tie,
    sum_bound,
)
from qconvert.checking.file_in_runtime import Side
from qconvert.checking.findings import OVERFLOW, Finding
from qconvert.checking.float_sums import FloatSums, Sum, classify_sums, sums_of_functions, sums_of_piece
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op, known_inputs
from qconvert.graph import Array, Arrays, Graph, Op, Quantization
from qconvert.graph.metadata import has_tflite_history
from qconvert.kernels.proofs import tried_tolerance
from qconvert.kernels.tolerances import partial_sums
from qconvert.operators import kind_of
from qconvert.rewriting.parts import trace_back

#: The kernels as which a result rounds that was made of a .tflite file.
_LITERT = "litert:default"
#: The share of the largest float by which results may be off where a whole kernel computes in float16 and the result is stored as float32:
#: sums of some products, curves by tables.
_LARGEST_SHARE_HALF = 2.0**-6
#: By how many steps, and what share of it, a float value may be off where the source cuts it off at the end of a quantization.
_BEYOND = 1.0, 0.01
#: By what share of a step a float value of a quantization may be off it, after sums in float32.
_NEAR_STEP = 1e-3


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges what source and result compute for one operator.

    Attributes:
        graph: the source's canonical graph.
        writers: the operator that computes each of its tensors.
        other, others: likewise the result's.
        sides: the source's file and the result's.
        further: what further roundings add to the result's tolerance, by the tensor; see classify.classify().
        cuts: names of the tensors at which both sides are cut; the result computes all others again.
        settled: these, and the source's tensors that follow from them with nothing rounded.
        fixed: the source's tensors that constants alone say; the result may hold one as a constant, which the conversion computed.
    """

    graph: Graph
    writers: Mapping[str, Op]
    other: Graph
    others: Mapping[str, Op]
    sides: tuple[Side, Side]
    further: Mapping[str, float | Array]
    cuts: Collection[str]
    settled: Collection[str]
    fixed: Collection[str] = ()

    def finding(self, op: Op, index: int, values: Arrays, pair: tuple[Array, Array]) -> Finding:
        """The finding for output `index` of an operator. What is equal needs no exact evaluation.

        Args:
            op: the operator.
            index: of the output.
            values: the stored values of the source's tensors, by name.
            pair: what the source and the result compute from them, both as the source stores it.
        """
        a, b = pair
        if kind_of(op).nearby and op.inputs[0] in values and a.shape == b.shape:
            b = np.where(_is_out_of_range(values[op.inputs[0]], a), a, b)
            pair = a, b
        if a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            moves = kind_of(op).rule in ("move", "relabel") and a.dtype.kind in "iu"
            return Finding("equal", "integers are moved" if moves else "", 1.0)
        if a.shape != b.shape:
            return Finding.of_shapes(a, b)
        if kind_of(op).rule == "opaque":
            return self._judge_block_product(op, values, pair) or compare_inexact(a, b)
        if words := self._describe_other_order(op, index, values, pair):
            return Finding(
                "approximate", f"{words} in another order", float((a == b).mean()), float(np.abs(a.astype(np.int64) - b).max()), 1.0
            )
        if (unrounded := self._judge_unrounded(op, values, pair)) is not None:
            return unrounded
        if a.dtype == np.float32 and self._has_half_floats():
            return compare_inexact(a, b, share=_LARGEST_SHARE_HALF)
        fixed = self._dequantize_weights(op)
        found = self._judge_pair(op, index, {**values, **fixed}, pair)
        if found.is_fault and any(item and item in values and item not in self.settled for item in op.inputs):
            found = min(found, self._judge_pair(op, index, {**self._settle(values), **fixed}, pair), key=lambda item: item.rank)
        if found.is_fault and kind_of(op).dequantizes:
            found = self._judge_quantized_floats(op, values, pair) or found
        if found.is_fault:
            found = self._judge_rounded_early(op, index, values, pair) or found
        if found.is_fault:
            found = self._explain_by_constants(op, index, {**values, **fixed}, pair, found)
        return self._explain_by_overflow(op, index, values, pair, found) if found.is_fault else found

    def _describe_other_order(self, op: Op, index: int, values: Arrays, pair: tuple[Array, Array]) -> str:
        """What two outputs have in another order that no value tells apart, in words; "" if they differ otherwise."""
        if op.kind == "SelectBoxes" and index == 0 and all(is_score_tie(self.graph, op, values, chosen) for chosen in pair):
            return "boxes of equal score"
        return "indices of equal values" if op.kind == "TopK" and index == 1 and self._has_ties_in_any_order(op, values, pair) else ""

    def _has_ties_in_any_order(self, op: Op, values: Arrays, pair: tuple[Array, Array]) -> bool:
        """Whether a side is known to take equal values in any order, and both sides' indices, each once, are those of equal values."""
        data, axis = values.get(op.inputs[0]), int(op["axis"])
        if data is None or not any(side.runtime.rows(side.kernels).fault(self.graph, op) for side in self.sides):
            return False
        if any((found < 0).any() or (found >= data.shape[axis]).any() for found in pair):
            return False
        is_repeated = (np.diff(np.sort(pair[1], axis), axis=axis) == 0).any()
        taken = [np.take_along_axis(data, found.astype(np.int64), axis) for found in pair]
        return not is_repeated and np.array_equal(taken[0], taken[1])

    def _settle(self, values: Arrays) -> dict[str, Array]:
        """Those of some values with which both sides are fed, or that follow from these."""
        return {name: value for name, value in values.items() if name in self.settled or self.graph[name].is_constant}

    def _has_half_floats(self) -> bool:
        """Whether a side has float values in the precision of float16."""
        return any(side.runtime.rows(side.kernels).half_floats for side in self.sides)

    def _quantize_again(self, op: Op, pair: tuple[Array, Array]) -> tuple[Op, Quantization, tuple[Array, Array]] | None:
        """The operator whose result a Dequantize gives in float, its quantization, and both sides' values with that."""
        tensor, before = self.graph[op.inputs[0]], self.writers.get(op.inputs[0])
        if before is None or tensor.quantization is None or not all(np.isfinite(value).all() for value in pair):
            return None
        a, b = (quantize(value.astype(np.float64), tensor.quantization, tensor.dtype) for value in pair)
        return before, tensor.quantization, (a, b)

    def _judge_quantized_floats(self, op: Op, values: Arrays, pair: tuple[Array, Array]) -> Finding | None:
        """Judge dequantized values that one side rounds otherwise within the same piece, as results of the operator before."""
        name, again = op.inputs[0], self._quantize_again(op, pair)
        if again is None or not again[1].is_per_tensor:
            return None
        before, quantization, (a, b) = again
        near = quantization.step * _NEAR_STEP
        if any((np.abs(dequantize(stored, quantization) - value) > near).any() for stored, value in zip((a, b), pair, strict=True)):
            return None
        known = self._settle({item: value for item, value in values.items() if item != name})
        found = self._judge_pair(before, before.outputs.index(name), {**known, **self._dequantize_weights(before)}, (a, b))
        return None if found.is_fault else replace(found, largest=float(np.abs(pair[0] - pair[1]).max(initial=0)))

    def _judge_rounded_early(self, op: Op, index: int, values: Arrays, pair: tuple[Array, Array]) -> Finding | None:
        """Judge float values that the result has rounded already as all their readers in the source do, by what these read of both."""
        name = op.outputs[index]
        readers = [item for item in self.graph.ops if name in item.inputs]
        results = [self.graph[item.outputs[0]] for item in readers if kind_of(item).quantizes]
        q = results[0].quantization if results and len(results) == len(readers) and name not in self.graph.outputs else None
        if (
            q is None
            or not q.is_per_tensor
            or pair[0].dtype.kind != "f"
            or not all(results[0].shares_quantization(item) for item in results)
        ):
            return None
        if not all(np.isfinite(value).all() for value in pair):
            return None
        a, b = (quantize(value.astype(np.float64), q, results[0].dtype) for value in pair)
        if (np.abs(dequantize(b, q) - pair[1]) > q.step * _NEAR_STEP).any():
            return None
        known = {**values, **self._dequantize_weights(op)}
        exact = exact_value(self.graph, op, known, index, self.writers)
        if exact is None:
            return None
        real, rounder = exact[0], replace(exact[1], outputs=(results[0].name,))
        bound = sum_bound(self.graph, exact[1], known)
        cancelled = 0.0 if bound is None else bound / q.step
        found = classify(self.graph, rounder, a, b, real, self._find_kernels(rounder, results[0].name), cancellation=cancelled)
        return None if found.is_fault else replace(found, largest=float(np.abs(pair[0] - pair[1]).max(initial=0)))

    def _judge_unrounded(self, op: Op, values: Arrays, pair: tuple[Array, Array]) -> Finding | None:
        """Judge dequantized values against floats that the result does not quantize: quantized the same way they must be correct."""
        again = self._quantize_again(op, pair) if kind_of(op).dequantizes and op.inputs[0] in self.sides[1].unrounded else None
        if again is None:
            return None
        before, quantization, stored = again
        index = before.outputs.index(op.inputs[0])
        found = self.finding(before, index, values, stored)
        beyond = self._count_wrong_clipped(before, index, values, pair[1], stored[1], quantization)
        off = np.abs(pair[0].astype(np.float64) - pair[1]).max(initial=0) / float(np.abs(pair[0]).max(initial=0) or 1)
        if found.is_fault:
            return replace(found, reason=f"{found.reason}, after quantization with the source's scale")
        if beyond:
            return replace(
                found, verdict="unexplained", reason="the result is wrong outside the source's quantized range", unexplained=beyond
            )
        kept = "approximate" if found.verdict == "equal" else found.verdict
        return replace(found, verdict=kept, reason="floats, which the source quantizes", equal=float((pair[0] == pair[1]).mean()),
                       largest=float(off), predicted_rate=1.0)  # fmt: skip

    def _count_wrong_clipped(self, op: Op, index: int, values: Arrays, found: Array, stored: Array, quantization: Quantization) -> int:
        """How many float values that a quantization cuts off are neither its end nor near to the exact ones."""
        exact = exact_value(self.graph, op, {**self._settle(values), **self._dequantize_weights(op)}, index, self.writers)
        if exact is None or exact[0].shape != found.shape or not quantization.is_per_tensor:
            return 0
        low, high = quantization.limits(self.graph[op.outputs[index]].dtype)
        steps = quantization.step
        off = np.minimum(np.abs(found - exact[0]), np.abs(found - dequantize(stored, quantization)))
        return int((((stored == low) | (stored == high)) & (off > _BEYOND[0] * steps + _BEYOND[1] * np.abs(exact[0]))).sum())

    def _judge_block_product(self, op: Op, values: Arrays, pair: tuple[Array, Array]) -> Finding | None:
        """Compare a source product that may round its data with a result product that does not."""
        if (op["domain"], op["op_type"]) != ("com.microsoft", "MatMulNBits") or op.inputs[0] not in values or pair[0].dtype.kind != "f":
            return None
        from qconvert.formats.onnx.definitions.embedding import coarse_product  # needs onnx

        found = coarse_product(self.graph, op, values[op.inputs[0]])
        if found is None or found[0].shape != pair[0].shape or pair[0].dtype != np.float32:
            return None
        exact, coarse, fine = found
        if not (np.abs(pair[1] - exact) <= fine).all():
            return None  # nothing allows the result to be coarse
        plain = Sum("", exact, fine)
        return classify_sums(*pair, [plain, Sum("blocks", exact, coarse)], [plain])

    def _explain_by_constants(self, op: Op, index: int, values: Arrays, pair: tuple[Array, Array], found: Finding) -> Finding:
        """Return `found`, a fault, unless the result is right for constants that the conversion computed and rounded otherwise."""
        held = {name: data for name in op.inputs if name in self.fixed and (data := self._find_held_constant(name, values)) is not None}
        if not held:
            return found
        return self._judge_with_values(held, op, index, values, pair, found, "is computed in the conversion, and differs by a rounding")

    def explain_by_own_values(self, op: Op, index: int, values: Arrays, pair: tuple[Array, Array], own: Arrays, found: Finding) -> Finding:
        """Return `found`, a fault, unless the result is right for its own values of inputs with which it could not be fed; these inputs
        have findings of their own.

        Args:
            own: the result's values of tensors.
        """
        fed = self._find_fed_tensors(op.outputs[index])
        held = {name: own[name] for name in op.inputs if name in own and name not in fed}
        return (
            self._judge_with_values(held, op, index, {**values, **self._dequantize_weights(op)}, pair, found, "is rounded otherwise")
            if held
            else found
        )

    def _find_fed_tensors(self, output: str) -> set[str]:
        """The tensors at which the result is cut and from which it computes an output."""
        found, waiting = set[str](), [output]
        while waiting:
            writer = self.others.get(waiting.pop())
            new = {name for name in writer.inputs if name} - found if writer is not None else set()
            found |= new
            waiting += new - set(self.cuts)
        return found & set(self.cuts)

    def _judge_with_values(
        self, held: Arrays, op: Op, index: int, values: Arrays, pair: tuple[Array, Array], found: Finding,
        why: str,
    ) -> Finding:  # fmt: skip
        """The finding if some inputs have values of the result; as it was if that explains nothing."""
        inputs = known_inputs(self.graph, op, {**values, **held})
        if inputs is None:
            return found
        try:
            meant = evaluate_op(self.graph, op, inputs)[index].stored
        except (QConvertError, AttributeError):
            return found
        if meant.shape != pair[1].shape:
            return found
        if np.array_equal(meant, pair[1]):
            again = Finding("one rounding")
        else:
            again = self._judge_pair(op, index, {**values, **held}, (meant, pair[1]))
        kept = replace(found, verdict=again.verdict, reason=f"{', '.join(map(repr, held))} {why}", predicted_rate=1.0, unexplained=0)
        return found if again.is_fault else kept

    def _find_held_constant(self, name: str, values: Arrays) -> Array | None:
        """Return the result's constant for a tensor that the source computes from constants, if it differs by roundings alone: within the
        tolerances of compare_inexact()."""
        own, other, measured = self.graph[name], self.other.tensors.get(name), values.get(name)
        if other is None or other.data is None or own.is_constant or measured is None or measured.shape != other.data.shape:
            return None
        if own.dtype != other.dtype or own.quantization != other.quantization:
            return None
        return None if compare_inexact(measured, other.data).is_fault else other.data

    def _explain_by_overflow(self, op: Op, index: int, values: Arrays, pair: tuple[Array, Array], found: Finding) -> Finding:
        """Return `found`, a fault, unless the source overflows as its kernels do, to the last bit, and the result is correct."""
        source = self.sides[0]
        if pair[0].dtype.kind not in "biu":
            return found
        made = compute_overflow(self.graph, op, index, values, self.writers, source.runtime.rows(source.kernels))
        if made is None or not made.can_give(pair[0]):
            return found
        if not np.array_equal(made.meant, pair[1]):
            again = self._judge_pair(op, index, {**made.values, **values}, (made.meant, pair[1]))
            if again.is_fault:
                return again
        where = ", ".join(dict.fromkeys(place.label for place in made.places))
        reason = f"{source.runtime.title}'s own kernel {made.fault} in {where}"
        return replace(found, verdict=OVERFLOW, reason=reason, predicted_rate=1.0, unexplained=0)

    def _dequantize_weights(self, op: Op) -> dict[str, Array]:
        """The float values of quantized constants that the operator and those before it read as weights."""
        found: dict[str, Array] = {}
        before: Op | None = op
        while before is not None:
            for name in before.inputs[1:]:
                maker = self.writers.get(name)
                stored = self.graph.constant(maker.inputs[0]) if maker is not None and kind_of(maker).dequantizes else None
                if maker is not None and stored is not None:
                    found[name] = evaluate_op(self.graph, maker, [stored])[0].stored
            near = [name for i in find_passed_inputs(self.graph, before) if (name := before.inputs[i]) and not self.graph[name].is_constant]
            near = near or ([before.inputs[0]] if before == op and before.inputs else [])
            before = self.writers.get(near[0]) if near else None
        return found

    def _judge_pair(self, op: Op, index: int, values: Arrays, pair: tuple[Array, Array]) -> Finding:
        """Two outputs of one shape that differ."""
        a, b = pair
        name = op.outputs[index]
        if kind_of(op).rule == "control" and a.dtype.kind == "f" and (alike := sums_of_functions(self.graph, op, index, values, a)):
            return classify_sums(a, b, alike[:1], alike)
        found = exact_value(self.graph, op, values, index, self.writers)
        if found is not None:
            real, rounder = found
            if a.dtype.kind == "f" and not kind_of(rounder).dequantizes:
                result = self._find_result_op(op)
                return FloatSums(self.graph, self.writers, self.other, self.sides, op, index, rounder, result, values, real, a).judge(b)
            if a.dtype.kind in "iu" and self.graph[name].is_quantized:
                summed = self._sum_before_activation(op, index, rounder, values)
                rounder = replace(rounder, outputs=(name,))
                own, its = self._find_kernels(rounder, name)
                further = self.further.get(name, 0.0) + self._bound_float_sums(op, rounder, real if summed is None else summed)
                further += self._bound_quantized_operands(rounder, its)
                cancelled = bound_cancellation(self.graph, rounder, values) / self.graph[name].require_quantization().step
                judged = classify(self.graph, rounder, a, b, real, (own, its), further, summed, cancelled)
                if judged.is_fault and has_tflite_history(self.other.metadata):
                    judged = classify(self.graph, rounder, a, b, real, (own, _LITERT), further, summed, cancelled)
                return judged
        known = all(self.graph[item].is_constant or item in values for item in op.inputs if item)
        if known and kind_of(op).rule in ("move", "relabel", "index") and a.dtype.kind in "iu":
            return classify(self.graph, replace(op, outputs=op.outputs[index:]), a, b, None, self._find_kernels(op, name))
        plain = compare_inexact(a, b)
        if plain.is_fault and (alike := sums_of_piece((self.graph, self.other), op, index, values, a)):
            return classify_sums(a, b, alike[:1], alike)
        return plain

    def _sum_before_activation(self, op: Op, index: int, rounder: Op, values: Arrays) -> Array | None:
        """What an operator of 16 bits sums before its activation cuts it off: float32 loses more of the large than of what is left."""
        if op != rounder or not op.attributes.get("activation") or self.graph[op.outputs[index]].dtype not in ("int16", "uint16"):
            return None
        plain = exact_value(self.graph, op.with_attributes(activation=""), values, index, self.writers)
        return None if plain is None else plain[0]

    def _bound_float_sums(self, op: Op, rounder: Op, exact: Array) -> float:
        """By how many steps sums in float32 may be off that the result has between a Dequantize and a Quantize: those of 16-bit data may be
        far larger than what is left of them."""
        result, quantization = self._find_result_op(op), self.graph[rounder.outputs[0]].quantization
        in_float = result is not None and kind_of(result).quantizes and not kind_of(rounder).quantizes
        return partial_sums(self.graph, rounder, exact / quantization.step) if in_float and quantization is not None else 0.0

    def _bound_quantized_operands(self, op: Op, kernels: str) -> float:
        """By how many steps the result's kernel may be off with operands that it alone quantizes, such as slopes of a PRelu: of float ones
        the kernel's row knows no integers."""
        result = self._find_result_op(op)
        if result is None or kind_of(result) is not kind_of(op):
            return 0.0
        sides = zip(op.inputs, result.inputs, strict=False)
        runtime, name = resolve_runtime(kernels)
        row = runtime.rows(name).of(self.other, result)
        if row is None or not any(a and b and self.other[b].is_quantized and not self.graph[a].is_quantized for a, b in sides):
            return 0.0
        return tried_tolerance(self.other, result, row) or 0.0

    def _find_kernels(self, op: Op, name: str) -> tuple[str, str]:
        """What computes a tensor on both sides. What chooses elements rounds none itself in the result: a QUANTIZE before it does."""
        result = self.sides[1]
        return self.sides[0].kernels_of(name), result.choice_for(name) if kind_of(op).chooses else result.kernels_of(name, with_parts=True)

    def _find_result_op(self, op: Op) -> Op | None:
        """Return the operator of the result that computes an output, before data movement."""
        name = trace_back(self.others, op.outputs[0], lambda it: kind_of(it).rule == "move" and it.inputs[0] not in self.cuts)
        return self.others.get(name)


def _is_out_of_range(value: Array, result: Array) -> Array:
    """Which floats a type of integers does not hold: what they become is undefined (ONNX's Cast, C), and runtimes differ."""
    if value.dtype.kind != "f" or result.dtype.kind not in "iu" or value.shape != result.shape:
        return np.zeros(result.shape, bool)
    limits = np.iinfo(result.dtype)
    with np.errstate(invalid="ignore"):
        return ~((value >= limits.min) & (value < float(limits.max) + 1))
