"""Operators whose constants or grids the conversion declared to be others: the result has to compute what it declared, from the values
that it declared, and the cost beside the source is told as real values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.checking.findings import Finding
from qconvert.checking.operator_finding import Judge
from qconvert.checking.verdicts import LEAST_SQNR, MOST_STEPS
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.graph.changed_values import paired_tensors

__all__ = ["Requantized", "costly_constants", "sqnr"]


@dataclass(frozen=True, slots=True)
class Requantized:
    """The source's graph with the constants and grids that the result declares.

    Attributes:
        source: the source's canonical graph.
        graph: the same with what was declared.
        names: the tensors that are others.
    """

    source: Graph
    graph: Graph
    names: frozenset[str]

    @classmethod
    def of(cls, source: Graph, other: Graph, declared: Collection[str]) -> Requantized:
        """
        Args:
            source, other: the canonical graphs of both sides.
            declared: names of tensors that are declared in the result.
        """
        restated = [_restated(old, new) for old, new in paired_tensors(source, other) if new.name in declared]
        found = [tensor for tensor in restated if tensor is not None]
        return cls(source, source.evolve(tensors=found), frozenset(tensor.name for tensor in found))

    def concerned(self, cuts: Collection[str]) -> dict[str, bool]:
        """The outputs of operators that read or write a tensor that is another, and whether by themselves; else an operator does that is
        run together with them.

        Args:
            cuts: the names at which both sides are cut.
        """
        found: dict[str, bool] = {}
        for op in self.source.ops:
            before = any(name in found and name not in cuts for name in op.inputs)
            if before or not self.names.isdisjoint((*op.inputs, *op.outputs)):
                found.update(dict.fromkeys(op.outputs, not before))
        return found

    def values(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The source's stored values on the grids that the result declares."""
        return {name: self._stored(name, value) for name, value in values.items()}

    def _stored(self, name: str, value: Array) -> Array:
        old, new = self.source.tensors.get(name), self.graph.tensors.get(name)
        if name not in self.names or old is None or new is None or old.quantization is None or new.quantization is None:
            return value
        return quantize(dequantize(value, old.quantization), new.quantization, new.dtype)

    def finding(self, op: Op, index: int, values: Mapping[str, Array], pair: tuple[Array, Array], judge: Judge, alone: bool) -> Finding:
        """What the result computes beside what it declared, and the cost beside the source.

        Args:
            op: of the source.
            index: of its output.
            values: as values() gives them.
            pair: what the source computes, and the result, as `graph` stores it.
            judge: of the result's kernels beside what it declared.
            alone: whether the values of the operator's inputs are not changed themselves; else only the cost is judged.
        """
        reference, found = pair
        old, new = (graph[op.outputs[index]] for graph in (self.source, self.graph))
        left, right = _real(old, reference), _real(new, found)
        if left.shape != right.shape:
            return Finding("unexplained", f"shape {right.shape} instead of {left.shape}", 0.0, float("inf"), 0.0, left.size)
        step = max(_step(old, left), _step(new, left))
        with np.errstate(invalid="ignore"):
            off = np.nan_to_num(np.abs(left - right), nan=np.inf) / step
        largest, equal = float(off.max(initial=0)), float((left == right).mean()) if left.size else 1.0
        cost = sqnr(left, right)
        said = "as declared" if cost is None else f"as declared, SQNR {cost:.1f} dB"
        try:
            inputs = [
                None if not name else self.graph.constant(name) if self.graph[name].is_constant else values[name] for name in op.inputs
            ]
            ideal = evaluate_op(self.graph, op, inputs)[index].stored
        except (QConvertError, KeyError):
            wrong = 0 if cost is None or cost >= LEAST_SQNR or largest <= MOST_STEPS else int((off > MOST_STEPS).sum())
            return Finding("unexplained" if wrong else "requantized", said, equal, largest, 1.0, wrong)
        judged = judge.finding(op, index, values, (ideal, found))
        if judged.verdict == "unexplained":
            return replace(judged, reason=f"{judged.reason}, by what the conversion declared")
        return replace(judged, verdict="requantized", reason=said, equal=equal, largest=largest)


def costly_constants(graph: Graph, other: Graph, declared: Collection[str]) -> dict[str, str]:
    """Declared constants whose real values are too far from the source's, by name, in words."""
    found, readers = {}, graph.consumers()
    for old, new in paired_tensors(graph, other):
        if not any(name in other.tensors for op in readers.get(old.name, ()) for name in op.outputs):
            continue  # another operator was taken into that which reads it, as a BatchNormalization is: they are judged together
        restated = _restated(old, new) if new.name in declared else None
        if old.data is None or restated is None or restated.data is None:
            continue
        name = old.name
        cost = sqnr(_real(old, old.data), _real(restated, restated.data))
        if cost is not None and cost < LEAST_SQNR:
            found[name] = f"the declared values of {name!r} are too far from the source's (SQNR {cost:.1f} dB, below {LEAST_SQNR:g})"
    return found


def sqnr(signal: Array, other: Array) -> float | None:
    """Signal to difference, in dB; None if there is none in float32, which the lowest value of a mask may leave."""
    with np.errstate(all="ignore"):
        same = signal.astype(np.float32) == other.astype(np.float32)
        noise = float(np.square(np.where(same, 0, signal - other)).sum())
        return None if noise == 0 else float(10 * (np.log10(max(float(np.square(signal).sum()), 1e-300)) - np.log10(noise)))


def _restated(old: Tensor, new: Tensor) -> Tensor | None:
    """The source's tensor with the values and the grid of the result's; None if they do not fit."""
    if old.data is None or new.data is None:
        return replace(old, dtype=new.dtype, quantization=_within(old, new)) if old.is_constant == new.is_constant else None
    forms = [replace(old, dtype=new.dtype, data=new.data, quantization=new.quantization)] if old.data.shape == new.data.shape else []
    if old.data.ndim == 2 and old.data.shape == new.data.shape[::-1]:
        grid = new.quantization
        turned = None if grid is None else replace(grid, axis=None if grid.axis is None else 1 - grid.axis)
        forms.append(replace(old, dtype=new.dtype, data=new.data.T, quantization=turned))
    if len(forms) < 2:
        return forms[0] if forms else None
    real = _real(old, old.data)  # a square matrix may be turned or not: as it fits
    return min(forms, key=lambda form: float(np.square(_real(form, _data(form)) - real).sum()))


def _within(old: Tensor, new: Tensor) -> Quantization | None:
    """The grid of the result, which saturates where that of the source does, if it goes beyond by more than a step."""
    before, after = old.quantization, new.quantization
    if before is None or after is None or not (before.is_per_tensor and after.is_per_tensor) or "float" in old.dtype + new.dtype:
        return after
    low, high = after.limits(new.dtype)
    lowest, highest = quantize(dequantize(np.array(before.limits(old.dtype)), before), after, new.dtype)
    kept = replace(after, quant_min=int(lowest) if lowest > low + 1 else after.quant_min)
    return replace(kept, quant_max=int(highest) if highest < high - 1 else after.quant_max)


def _data(tensor: Tensor) -> Array:
    assert tensor.data is not None
    return tensor.data


def _real(tensor: Tensor, values: Array) -> Array:
    if tensor.quantization is None or values.dtype.kind not in "iu":
        return np.asarray(values.astype(np.float64))
    return dequantize(values, tensor.quantization)


def _step(tensor: Tensor, values: Array) -> float:
    """The step of a grid; of real values 1/255 of their range."""
    if tensor.quantization is not None:
        return float(np.max(tensor.quantization.scale))
    return float(values.max(initial=0) - values.min(initial=0)) / 255 or 1.0
