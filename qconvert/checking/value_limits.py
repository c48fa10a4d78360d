"""Between which values tensors lie, as quantizations and operators limit them, in source and result. Few inputs produce values that reach a
limit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf, isclose

from qconvert.arithmetic import affine_range
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS
from qconvert.operators import Kind, kind_of
from qconvert.operators.properties import ANY, Interval
from qconvert.rules.changed_values import paired_inputs

#: By how many steps of its quantization an end may be off: what is halfway between two of them, kernels round to either side.
_TIE = 0.75
#: By what share ends of float values may be off: formats hold them as float32.
_LIMIT_ROUNDING = 1e-5


def compare_limits(graph: Graph, other: Graph, declared: Collection[str]) -> dict[str, str]:
    """Return the tensors with other limits than in the source, or whose operators read floats with such in the result, in words, by name.

    Limits that differ by channel are those of the channel where they are closest. Per-channel tensors are not compared, nor are tensors of
    another kind of operator, which may contain the limits.

    Args:
        graph, other: the canonical graphs of source and result; tensors of one name are the same.
        declared: names of the tensors of which the conversion declared that they have another quantization.
    """
    writers, others = graph.producers(), other.producers()
    found: dict[str, str] = {}
    same = ((name, "its values lie", name, name) for name in writers.keys() & others.keys())
    pairs = ((op, a, b) for op, a, b in paired_inputs(graph, other) if not b.is_quantized)
    floats = ((op, a, b) for op, a, b in pairs if not kind_of(op).quantizes)  # which limits them itself
    read = ((op.outputs[0], f"its data {a.name!r} lie", a.name, b.name) for op, a, b in floats)
    for name, words, before, after in (*same, *read):
        own, its = _Ends.of(graph, writers, before, closest=True), _Ends.of(other, others, after, closest=True)
        alike = own.function and own.function == its.function and not (own.names | its.names).intersection(declared)
        alike = alike and bool(own.step) == bool(its.step)  # else one has it elsewhere, as in a file next to
        if alike and not all(_is_near(max(own.step, its.step), *ends) for ends in zip(own.limits, its.limits, strict=True)):
            found.setdefault(name, f"{words} {_format_limits(its.limits)} instead of {_format_limits(own.limits)}")
    return {name: found[name] for name in writers if name in found}


def is_redundant_limit(graph: Graph, op: Op, name: str) -> bool:
    """Whether an operator does nothing but limit values, and the quantization of a tensor has none beyond its limits."""
    limits = (kind_of(op).clips or _find_bound(graph, op) is not None) and _find_passed_input(graph, op) == op.inputs[0]
    ends, (low, high) = operator_limits(graph, op), _quantized_range(graph[name])
    return limits and (ends[0] <= low or _is_near(0.0, ends[0], low)) and (ends[1] >= high or _is_near(0.0, ends[1], high))


def limits_of(graph: Graph, writers: Mapping[str, Op], name: str) -> Interval:
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
        function: what the operator computes whose values are passed on to the tensor: its kind, or what all those are that conversions make
            of each other; "" without one, or for data movement and choices.
        names: of the tensors from there on.
        step: the coarsest of their quantizations; 0 where they have none.
    """

    limits: Interval
    function: str
    names: frozenset[str]
    step: float

    @classmethod
    def of(cls, graph: Graph, writers: Mapping[str, Op], name: str, *, closest: bool = False) -> _Ends:
        """Follow a tensor back. With `closest`, limits that differ by channel are those of the channel that has the closest ones."""
        (low, high), names = ANY, {name}
        while True:
            op = writers.get(name)
            for ends in (_quantized_range(graph[name]), operator_limits(graph, op, closest=closest)):
                low, high = max(low, ends[0]), min(high, ends[1])
            name = _find_passed_input(graph, op, closest=closest)
            if not name:
                function, step = "" if op is None else _name_function(kind_of(op)), max(_step_size(graph[item]) for item in names)
                return cls((low, high), function, frozenset(names), step)
            names.add(name)


def _name_function(kind: Kind) -> str:
    """See _Ends.function."""
    if kind.rule != "real" or kind.chooses:
        return ""
    return "product" if kind.sums_products else "mean" if kind.averages else "sum" if kind.sum_sign else kind.name


def _quantized_range(tensor: Tensor) -> Interval:
    if tensor.per_tensor is None or "int" not in tensor.dtype:
        return ANY
    low, high = affine_range(tensor.per_tensor, tensor.dtype)
    return float(low[0]), float(high[0])


def _step_size(tensor: Tensor) -> float:
    return 0.0 if tensor.per_tensor is None else tensor.per_tensor.step


def operator_limits(graph: Graph, op: Op | None, *, closest: bool = False) -> Interval:
    """Return the limits that an operator by itself sets, with its constants and its activation, whatever its other inputs are; see
    _Ends.of()."""
    if op is None:
        return ANY
    given = {name: ANY if (value := _constant_number(graph, name)) is None else (value, value) for name in op.inputs if name}
    if closest and (bound := _find_bound(graph, op, closest=True)) is not None:
        given |= {name: (bound, bound) for name in op.inputs if graph[name].is_constant}
    ends = kind_of(op).interval(graph, op, given)
    low, high = ACTIVATIONS[str(op.attributes.get("activation") or "")]
    return max(ends[0], -inf if low is None else low), min(ends[1], inf if high is None else high)


def _find_passed_input(graph: Graph, op: Op | None, *, closest: bool = False) -> str:
    """Return the tensor whose values an operator passes on within its limits; "" for other operators."""
    if op is None:
        return ""
    kind = kind_of(op)
    if kind.clips or kind.keeps_values:
        return op.inputs[0]
    if _find_bound(graph, op, closest=closest) is not None:
        return next(name for name in op.inputs if not graph[name].is_constant)
    return ""


def _find_bound(graph: Graph, op: Op, *, closest: bool = False) -> float | None:
    """The number that Max or Min compare their data with, the closest of several; None where that is not one constant number."""
    constants = [name for name in op.inputs if graph[name].is_constant] if kind_of(op).picks else []
    if len(constants) != 1:
        return None
    values = graph[constants[0]].float_values()
    if not closest or values.size < 2:
        return _constant_number(graph, constants[0])
    return float(values.max() if kind_of(op).picks > 0 else values.min())


def _constant_number(graph: Graph, name: str) -> float | None:
    tensor = graph[name]
    return float(tensor.float_values().reshape(-1)[0]) if tensor.data is not None and tensor.data.size == 1 else None


def _is_near(step: float, own: float, its: float) -> bool:
    return own == its or abs(own - its) <= _TIE * step or isclose(own, its, rel_tol=_LIMIT_ROUNDING)


def _format_limits(limits: Interval) -> str:
    return f"between {limits[0]:.6g} and {limits[1]:.6g}"
