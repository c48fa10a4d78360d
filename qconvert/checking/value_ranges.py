"""Ranges of the values of tensors of one name in source and result, by their quantizations, activations, Relu, Clip, Max and Min. Few
inputs produce values at such a limit, so a wrong limit does not show in values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf, isclose

from qconvert.arithmetic import affine_range, dequantize
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS
from qconvert.operators import kind_of

__all__ = ["compare_limits", "is_redundant_limit", "limits_of", "operator_limits"]

#: By how many steps of its quantization an end may be off: what is halfway between two of them, kernels round to either side.
_TIE = 0.75
#: By what share ends of float values may be off: formats hold them as float32.
_ROUNDING = 1e-5

#: What conversions make of each other.
_SAME_KIND = {"MatMul": "Gemm", "Conv": "Gemm", "GlobalAveragePool": "ReduceMean", "AveragePool": "ReduceMean", "Sub": "Add"}

Limits = tuple[float, float]


def compare_limits(graph: Graph, other: Graph, declared: Collection[str]) -> dict[str, str]:
    """Return the tensors with other limits than in the source, in words, by name. Per-channel tensors are not compared, nor are tensors of
    another kind of operator, which may contain the limits.

    Args:
        graph, other: the canonical graphs of source and result; tensors of one name are the same.
        declared: names of the tensors of which the conversion declared that they have another quantization.
    """
    writers, others = graph.producers(), other.producers()
    found = {}
    for name in writers.keys() & others.keys():
        own, its = _Ends.of(graph, writers, name), _Ends.of(other, others, name)
        alike = own.kind and own.kind == its.kind and not (own.names | its.names).intersection(declared)
        alike = alike and bool(own.step) == bool(its.step)  # else one has it elsewhere, as in a file next to
        if alike and not all(_is_near(max(own.step, its.step), *ends) for ends in zip(own.limits, its.limits, strict=True)):
            found[name] = f"its values lie {_format_limits(its.limits)} instead of {_format_limits(own.limits)}"
    return {name: found[name] for name in writers if name in found}


def is_redundant_limit(graph: Graph, op: Op, name: str) -> bool:
    """Whether an operator does nothing but limit values, and the quantization of a tensor has none beyond its limits."""
    limits = (kind_of(op).clips or _find_bound(graph, op) is not None) and _find_passed_input(graph, op) == op.inputs[0]
    ends, (low, high) = operator_limits(graph, op), _quantized_range(graph[name])
    return limits and (ends[0] <= low or _is_near(0.0, ends[0], low)) and (ends[1] >= high or _is_near(0.0, ends[1], high))


def limits_of(graph: Graph, writers: Mapping[str, Op], name: str) -> Limits:
    """Between which float values a tensor lies, by its own quantization and by the operators that pass values on to it.

    Args:
        graph: canonical, or as read.
        writers: the operator that computes each of its tensors.
        name: of the tensor.
    """
    return _Ends.of(graph, writers, name).limits


@dataclass(frozen=True, slots=True)
class _Ends:
    """Between which values a tensor lies.

    Attributes:
        limits: the lowest and the highest value.
        kind: of the operator that computes the values passed on to the tensor; "" without one, or for data movement and choices.
        names: of the tensors from there on.
        step: the coarsest of their quantizations; 0 where they have none.
    """

    limits: Limits
    kind: str
    names: frozenset[str]
    step: float

    @classmethod
    def of(cls, graph: Graph, writers: Mapping[str, Op], name: str) -> _Ends:
        low, high, names = -inf, inf, {name}
        while True:
            op = writers.get(name)
            for ends in (_quantized_range(graph[name]), operator_limits(graph, op)):
                low, high = max(low, ends[0]), min(high, ends[1])
            name = _find_passed_input(graph, op)
            if not name:
                computes = op is not None and kind_of(op).rule == "real" and not kind_of(op).chooses
                kind = _SAME_KIND.get(op.kind, op.kind) if op is not None and computes else ""
                return cls((low, high), kind, frozenset(names), max(_step_size(graph[item]) for item in names))
            names.add(name)


def _quantized_range(tensor: Tensor) -> Limits:
    quantization = tensor.quantization
    if quantization is None or not quantization.is_per_tensor or "int" not in tensor.dtype:
        return -inf, inf
    low, high = affine_range(quantization, tensor.dtype)
    return float(low[0]), float(high[0])


def _step_size(tensor: Tensor) -> float:
    quantization = tensor.quantization
    return float(quantization.scale[0]) if quantization is not None and quantization.is_per_tensor else 0.0


def operator_limits(graph: Graph, op: Op | None) -> Limits:
    """Return the limits that an operator by itself sets, with its constants and its activation, whatever its other inputs are."""
    if op is None:
        return -inf, inf
    given = {name: (-inf, inf) if (value := _constant_number(graph, name)) is None else (value, value) for name in op.inputs if name}
    ends = kind_of(op).interval(graph, op, given)
    low, high = ACTIVATIONS[str(op.attributes.get("activation") or "")]
    return max(ends[0], -inf if low is None else low), min(ends[1], inf if high is None else high)


def _find_passed_input(graph: Graph, op: Op | None) -> str:
    """Return the tensor whose values an operator passes on within its limits; "" for other operators."""
    if op is None:
        return ""
    kind = kind_of(op)
    if kind.clips or kind.rule == "convert" or kind.keeps_elements or op.kind == "Identity":
        return op.inputs[0]
    if _find_bound(graph, op) is not None:
        return next(name for name in op.inputs if _constant_number(graph, name) is None)
    return ""


def _find_bound(graph: Graph, op: Op) -> float | None:
    """The number that Max or Min compare their data with; None where that is not one number."""
    if op.kind not in ("Max", "Min") or len(op.inputs) != 2:
        return None
    found = [_constant_number(graph, name) for name in op.inputs]
    return next((value for value in found if value is not None), None) if found.count(None) == 1 else None


def _constant_number(graph: Graph, name: str) -> float | None:
    data = graph.constant(name) if name else None
    if data is None or data.size != 1:
        return None
    quantization = graph[name].quantization
    return float((data if quantization is None else dequantize(data, quantization)).reshape(-1)[0])


def _is_near(step: float, own: float, its: float) -> bool:
    return own == its or abs(own - its) <= _TIE * step or isclose(own, its, rel_tol=_ROUNDING)


def _format_limits(limits: Limits) -> str:
    return f"between {limits[0]:.6g} and {limits[1]:.6g}"
