"""Operators with constants or quantizations that the conversion declared to be others: the result must compute with the declared ones, and
the cost compared with the source is measured in float."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.checking.classify import resolve_runtime
from qconvert.checking.exchanged_values import to_float
from qconvert.checking.expected_values import exact_value, propagate_errors
from qconvert.checking.findings import Finding
from qconvert.checking.operator_finding import Judge
from qconvert.checking.outputs import absolute_difference
from qconvert.checking.same_codes import keeps_codes
from qconvert.checking.verdicts import LEAST_ALONE, LEAST_SQNR, MOST_STEPS
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op, known_inputs
from qconvert.graph import Array, Arrays, Graph, Op, Quantization, Tensor
from qconvert.operators import kind_of
from qconvert.rules.changed_values import list_axis_orders, paired_tensors

#: A constant that is rounded to a quantization, and then onto another, or whose values are ties, is off by this many steps at most.
_MOST_ROUNDED = 1.5

#: How far, in dB, the difference from what was declared has to be below it where an operator before is judged along.
_LEAST_TOGETHER = 40.0


@dataclass(frozen=True, slots=True)
class Requantized:
    """The source's graph with the constants and quantizations that the result declares.

    Attributes:
        source: the source's canonical graph.
        graph: the same with what was declared.
        names: the tensors that are others.
        entering: source tensor that keeps its quantization -> tensor of another one to which the result rounds it for its readers.
        readers: what the result computes of these.
    """

    source: Graph
    graph: Graph
    names: frozenset[str]
    entering: Mapping[str, Tensor]
    readers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, source: Graph, other: Graph, declared: Collection[str]) -> Requantized:
        """
        Args:
            source, other: the canonical graphs of both sides.
            declared: names of tensors that are declared in the result.
        """
        pairs = paired_tensors(source, other)
        edges = _map_quantized_io(other)
        restated = [_restate_tensor(old, edges.get(new.name, new)) for old, new in pairs if new.name in declared]
        found = {tensor.name: tensor for tensor in restated if tensor is not None}
        for op in source.ops:  # data movement takes over the quantization: the result may have the data only, in its own layout
            kind, name = kind_of(op), op.outputs[0] if op.outputs else ""
            moved = [found[item] for item in kind.moved_inputs(op) if item in found] if kind.rule == "move" else []
            if len(moved) == 1 and moved[0].data is None and name not in other.tensors and _is_single_move(source, op):
                found.setdefault(name, replace(source[name], dtype=moved[0].dtype, quantization=moved[0].quantization))
        entering = dict(_find_entering(source, other, declared, found))
        readers = _find_computed(other, {tensor.name for tensor in entering.values()})
        return cls(source, source.evolve(tensors=found.values()), frozenset(found), entering, readers)

    def find_affected(self, settled: Collection[str]) -> dict[str, bool]:
        """The outputs of operators that read or write a tensor that is another, and whether by themselves; else an operator does that is
        run together with them.

        Args:
            settled: the names at which both sides are cut, and what follows from these with nothing rounded.
        """
        found: dict[str, bool] = {}
        for op in self.source.ops:
            before = any(name in found and name not in settled for name in op.inputs)
            entered = not self.entering.keys().isdisjoint(op.inputs) and not self.readers.isdisjoint(op.outputs)
            if before or entered or not self.names.isdisjoint(op.names):
                found.update(dict.fromkeys(op.outputs, not before))
        return found

    def values(self, values: Arrays) -> dict[str, Array]:
        """The source's stored values with the quantizations that the result declares."""
        return {name: self._restate_value(name, value) for name, value in values.items()}

    def _restate_value(self, name: str, value: Array) -> Array:
        old, new = self.source.tensors.get(name), self.graph.tensors.get(name)
        return value if name not in self.names or old is None or new is None else _requantize_values(old, new, value)

    def finding(self, op: Op, index: int, values: Arrays, pair: tuple[Array, Array], judge: Judge, alone: bool) -> Finding:
        """Judge the result against what it declared, with the cost compared with the source.

        Args:
            op: of the source.
            index: of its output.
            values: as values() gives them.
            pair: what the source computes, and the result, as `graph` stores it.
            judge: of the result's kernels compared with what it declared.
            alone: whether the result is cut at all of the operator's inputs that are others; else it has to be near to what was declared.
        """
        reference, found = pair
        old, new = (graph[op.outputs[index]] for graph in (self.source, self.graph))
        left, right = to_float(old, reference), to_float(new, found)
        if left.shape != right.shape:
            return Finding.of_shapes(left, right)
        step = max(_step_size(old, left), _step_size(new, left))
        off = absolute_difference(left, right) / step
        largest, equal = float(off.max(initial=0)), float((left == right).mean()) if left.size else 1.0
        cost, said = sqnr(left, right), "as declared"
        judged, ideal = self._judge_result(op, index, values, found, judge)
        if judged is not None and judged.is_fault and (wide := _widen_limits(old, new)) is not None:
            inner = replace(self, graph=self.graph.evolve(tensors=[wide]))
            other, wider = inner._judge_result(op, index, values, found, replace(judge, graph=inner.graph))
            judged, ideal = (judged, ideal) if other is None or other.is_fault else (other, wider)
        if ideal is None or judged is None:
            wrong = 0 if cost is None or cost >= LEAST_SQNR or largest <= MOST_STEPS else int((off > MOST_STEPS).sum())
            return Finding("unexplained" if wrong else "requantized", said, equal, largest, 1.0, wrong, sqnr_db=cost)
        if judged.is_fault and not alone and _is_near(to_float(new, ideal), right, step):
            judged = replace(judged, verdict="approximate", unexplained=0)
        if judged.is_fault:
            return replace(judged, reason=f"{judged.reason}, by changes that the conversion declared")
        return replace(judged, verdict="requantized", reason=said, equal=equal, largest=largest, sqnr_db=cost)

    def _judge_result(self, op: Op, index: int, values: Arrays, found: Array, judge: Judge) -> tuple[Finding | None, Array | None]:
        """Return the finding against the declared computation, and its integers; data that the result first rounds to an entering
        quantization are rounded here too."""
        ideal = self._compute_ideal(op, index, values, judge)
        judged = None if ideal is None else judge.finding(op, index, values, (ideal, found))
        names = [name for name in op.inputs if name in self.entering and name in values]
        if judged is None or not judged.is_fault or not names or kind_of(op).requantizes:
            return judged, ideal
        tensors = [replace(self.graph[name], dtype=to.dtype, quantization=to.quantization) for name in names if (to := self.entering[name])]
        rounded = {t.name: _requantize_values(self.graph[t.name], t, values[t.name]) for t in tensors}
        inner = replace(self, graph=self.graph.evolve(tensors=tensors), entering={})
        values, entered = {**values, **rounded}, values
        again = replace(judge, graph=inner.graph)
        judged, ideal = inner._judge_result(op, index, values, found, again)
        if judged is None or not judged.is_fault or (moved := self._bound_input_rounding(op, index, inner.graph, entered, judge)) is None:
            return judged, ideal
        name = op.outputs[index]
        return inner._judge_result(
            op, index, values, found, replace(again, further={**judge.further, name: judge.further.get(name, 0.0) + moved})
        )

    def _bound_input_rounding(self, op: Op, index: int, graph: Graph, values: Arrays, judge: Judge) -> Array | None:
        """By how many steps of its result an operator with weights may be off because the kernel that rounds its data to the entering
        quantization is coarse, as LiteRT's QUANTIZE is: by a step of each of them that lies near a tie."""
        name, result = op.inputs[0] if op.inputs else "", graph[op.outputs[index]].quantization
        to, before = self.entering.get(name), self.graph[name].quantization if name else None
        rounder = judge.others.get(to.name) if to is not None else None
        if not kind_of(op).has_weights or to is None or to.quantization is None or before is None or rounder is None or result is None:
            return None
        step = to.quantization.step
        exact = dequantize(values[name], before) / step
        runtime, kernels = resolve_runtime(judge.sides[1].kernels_of(to.name))
        tolerance, _ = runtime.rows(kernels).tolerance(judge.other, rounder, exact)
        near = np.abs(np.abs(exact - np.floor(exact)) - 0.5) <= tolerance
        moved = propagate_errors(graph, op, near * step, values)
        return None if moved is None else moved / result.step

    def _compute_ideal(self, op: Op, index: int, values: Arrays, judge: Judge) -> Array | None:
        """Compute the declared integers of the result from the tensors at which it was cut; None if not known."""
        tensor = self.graph[op.outputs[index]]
        if tensor.quantization is not None and any(name and name in values and name not in judge.cuts for name in op.inputs):
            cut = {name: value for name, value in values.items() if name in judge.cuts}
            exact = exact_value(self.graph, op, cut, index, judge.writers)
            if exact is not None:
                return quantize(exact[0], tensor.quantization, tensor.dtype)
        inputs = known_inputs(self.graph, op, values)
        try:
            return None if inputs is None else evaluate_op(self.graph, op, inputs)[index].stored
        except QConvertError:
            return None


def _requantize_values(old: Tensor, new: Tensor, value: Array) -> Array:
    """Stored values with another quantization."""
    if old.quantization is None or new.quantization is None:
        return value
    return quantize(dequantize(value, old.quantization), new.quantization, new.dtype)


def _find_entering(source: Graph, other: Graph, declared: Collection[str], found: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that the result rounds to a declared quantization for their readers; the source has only their own."""
    writers = other.producers()
    for op in other.ops:
        if not kind_of(op).requantizes or op.outputs[0] not in declared or op.outputs[0] in source.tensors:
            continue
        name = op.inputs[0]
        while name not in source.tensors and (before := writers.get(name)) is not None and keeps_codes(other, before):
            name = before.inputs[0]
        if name in source.tensors and name not in found and source[name].is_quantized and not source[name].is_constant:
            yield name, other[op.outputs[0]]


def _find_computed(graph: Graph, names: set[str]) -> frozenset[str]:
    """Return the results of operators that read these tensors, directly or after data movement, and the results of data movement on them:
    either may have the source's name."""
    found, same = set[str](), set(names)
    for op in graph.ops:
        plain = keeps_codes(graph, op)
        if not same.isdisjoint(op.inputs):
            found.update(op.outputs)
            same.update(op.outputs if plain else ())
        elif plain and not found.isdisjoint(op.inputs):
            found.update(op.outputs)
    return frozenset(found)


def _map_quantized_io(graph: Graph) -> dict[str, Tensor]:
    """The integers of real graph inputs that are quantized at once, and of real outputs that come from integers, by the edges' names."""
    found = {op.inputs[0]: graph[op.outputs[0]] for op in graph.of_kind("Quantize") if op.inputs[0] in graph.inputs}
    return found | {op.outputs[0]: graph[op.inputs[0]] for op in graph.of_kind("Dequantize") if op.outputs[0] in graph.outputs}


def _is_single_move(graph: Graph, op: Op) -> bool:
    """Return whether an operator is data movement of one tensor with the same quantization."""
    return kind_of(op).moved_inputs(op) == [op.inputs[0]] and graph[op.inputs[0]].shares_quantization(graph[op.outputs[0]])


def find_costly_constants(graph: Graph, other: Graph, declared: Collection[str], chosen: bool = False) -> dict[str, str]:
    """Declared constants whose float values are too far from the source's, by name, in words.

    Args:
        graph, other: the source's graph and the result's.
        declared: names of the result's tensors.
        chosen: whether the user named a pass that is not exact.
    """
    found, readers = {}, graph.consumers()
    for old, new in paired_tensors(graph, other):
        if not any(name in other.tensors for op in readers.get(old.name, ()) for name in op.outputs):
            continue  # another operator was taken into that which reads it, as a BatchNormalization is: they are judged together
        restated = _restate_tensor(old, new) if new.name in declared else None
        if old.data is None or restated is None or restated.data is None:
            continue
        name = old.name
        steps = _measure_steps(graph, readers.get(name, ()), old, restated)
        if steps is not None:
            if steps > _MOST_ROUNDED:
                found[name] = f"the declared values of {name!r} are {steps:.4g} steps from the source's quantized values"
            continue
        cost = sqnr(to_float(old, old.data), to_float(restated, restated.data))
        least = LEAST_ALONE if chosen else _least_sqnr(restated.dtype)
        if cost is not None and cost < least and not _is_rounded_sum(old, restated):
            found[name] = f"the declared values of {name!r} are too far from the source's (SQNR {cost:.1f} dB, below {least:g})"
    return found


def _is_rounded_sum(old: Tensor, restated: Tensor) -> bool:
    """Return whether a bias is the source's, rounded once to the sums that the kernel adds it to: one below half a step of them is 0."""
    if restated.dtype not in ("int32", "int64") or restated.quantization is None or old.rank != 1:
        return False
    off = np.abs(to_float(old, _constant_data(old)) - to_float(restated, _constant_data(restated)))
    return bool((off <= 0.5001 * restated.quantization.scale.astype(np.float64)).all())


def _least_sqnr(dtype: str) -> float:
    """What values rounded to a type keep at least; 4 bits, at 6 dB each, leave 14 to 20 dB of weights."""
    return LEAST_SQNR if dtype not in ("int4", "uint4", "int2", "uint2") else 6 * int(dtype[-1]) - 10.0


def _measure_steps(graph: Graph, readers: Collection[Op], old: Tensor, restated: Tensor) -> float | None:
    """How far the values of a constant are from those that it gets in the source, too: the operators that read it choose among elements,
    and round them onto their results' quantizations. In steps of the coarser scale; None if another operator reads it, or one without a
    quantization."""
    quantizations = [graph[op.outputs[0]].quantization for op in readers if kind_of(op).chooses]
    if not quantizations or len(quantizations) != len(readers):
        return None
    real, found = to_float(old, _constant_data(old)), to_float(restated, _constant_data(restated))
    off = 0.0
    for op, quantization in zip(readers, quantizations, strict=True):
        if quantization is None or not quantization.is_per_tensor:
            return None
        rounded = dequantize(quantize(real, quantization, graph[op.outputs[0]].dtype), quantization)
        step = max(quantization.step, _step_size(restated, found))
        off = max(off, float(np.abs(rounded - found).max(initial=0)) / step)
    return off


def sqnr(signal: Array, other: Array) -> float | None:
    """Signal to difference, in dB; None if there is none in float32, which the lowest value of a mask may leave."""
    with np.errstate(all="ignore"):
        same = signal.astype(np.float32) == other.astype(np.float32)
        noise = float(np.square(np.where(same, 0, signal - other)).sum())
        return None if noise == 0 else float(10 * (np.log10(max(float(np.square(signal).sum()), 1e-300)) - np.log10(noise)))


def _restate_tensor(old: Tensor, new: Tensor) -> Tensor | None:
    """The source's tensor with the values and the quantization of the result's; None if they do not fit."""
    if old.data is None or new.data is None:
        return replace(old, dtype=new.dtype, quantization=_limit_quantization(old, new)) if old.is_constant == new.is_constant else None
    forms = list(_list_transposed(old, new))
    if len(forms) < 2:
        return forms[0] if forms else None
    real = to_float(old, old.data)  # a square matrix may be turned or not: as it fits
    return min(forms, key=lambda form: float(np.square(to_float(form, _constant_data(form)) - real).sum()))


def _list_transposed(old: Tensor, new: Tensor) -> Iterator[Tensor]:
    """The source's constant with what the result's holds, whose axes may stand in another order, with others of one element."""
    data, quantization = _constant_data(new), new.quantization
    wanted = _constant_data(old).shape
    kept, places = ([axis for axis, size in enumerate(shape) if size != 1] for shape in (data.shape, wanted))
    if data.shape == wanted:
        yield replace(old, dtype=new.dtype, data=data, quantization=quantization)
    if quantization is not None and quantization.block_size:
        return
    for order in list_axis_orders(data.shape, wanted):
        if order == tuple(places) and data.shape == wanted:
            continue  # as it stands
        own = None if quantization is None or quantization.axis is None else quantization.axis % data.ndim
        if own is not None and own not in order:
            continue
        moved = quantization if quantization is None or own is None else quantization.with_axis(places[order.index(own)])
        values = data.reshape([data.shape[axis] for axis in kept]).transpose([kept.index(axis) for axis in order])
        yield replace(old, dtype=new.dtype, data=np.ascontiguousarray(values.reshape(wanted)), quantization=moved)


def _limit_quantization(old: Tensor, new: Tensor) -> Quantization | None:
    """Return the result's quantization, limited to the source's range where it exceeds this by more than a step of the coarser one."""
    before, after = old.quantization, new.quantization
    if before is None or after is None or not (before.is_per_tensor and after.is_per_tensor) or "float" in old.dtype + new.dtype:
        return after
    low, high = after.limits(new.dtype)
    lowest, highest = quantize(dequantize(np.array(before.limits(old.dtype)), before), after, new.dtype)
    step = max(1.0, before.step / after.step)
    kept = replace(after, quant_min=int(lowest) if lowest > low + step else after.quant_min)
    return replace(kept, quant_max=int(highest) if highest < high - step else after.quant_max)


def _widen_limits(old: Tensor, new: Tensor) -> Tensor | None:
    """Return the result's tensor, limited a step beyond the source's range: passes put no clip where values go no further than that."""
    before, after = old.quantization, new.quantization
    if before is None or after is None or not (before.is_per_tensor and after.is_per_tensor) or after.quant_min is after.quant_max is None:
        return None
    slack = math.ceil(max(1.0, before.step / after.step))
    low, high = (None if limit is None else limit + off for limit, off in ((after.quant_min, -slack), (after.quant_max, slack)))
    return replace(new, quantization=replace(after, quant_min=low, quant_max=high))


def _is_near(ideal: Array, found: Array, step: float) -> bool:
    """Whether a result that several kernels computed, one after the other, is near to what it should be, as a whole and in each element.

    Intermediate tensors without a counterpart (renamed_tensors.py) may round ties to either side, by one step of their declared
    quantization; their readers propagate the step.
    """
    off = sqnr(ideal, found)
    return off is None or (off >= _LEAST_TOGETHER and float(np.abs(ideal - found).max(initial=0)) <= MOST_STEPS * step)


def _constant_data(tensor: Tensor) -> Array:
    assert tensor.data is not None
    return tensor.data


def _step_size(tensor: Tensor, values: Array) -> float:
    """The step of a quantization; of float values 1/255 of their range."""
    if tensor.quantization is not None:
        return float(np.max(tensor.quantization.scale))
    return float(values.max(initial=0) - values.min(initial=0)) / 255 or 1.0
