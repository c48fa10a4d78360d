"""What operators and tensors of one name state otherwise in source and result: attributes, fused activations, roundings, and the limits of
values. Few inputs produce values that show such a difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isclose

from qconvert.arithmetic import ADDITIONS, OF_WHOLE_TENSORS, TORCH_AVERAGES, affine_range
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS, clip_range
from qconvert.graph.metadata import DYNAMIC_RANGE, IN_TFLITE, has_tflite_history, read_entries, read_names
from qconvert.operators import Kind, is_dynamic, kind_of
from qconvert.rewriting.torch_forms import rounds_alike
from qconvert.rules.changed_values import paired_inputs

#: Formats hold such numbers as float32.
_ROUNDING = 2.0**-22


def compare_attributes(graph: Graph, other: Graph) -> dict[str, str]:
    """What differs, by the name of the tensor that both operators compute, in words; operators of other kinds are not compared.

    Args:
        graph, other: the canonical graphs of source and result; tensors of one name are the same.
    """
    writers = other.producers()
    found = {}
    for op in graph.ops:
        name = next(filter(None, op.outputs), "")
        pair = writers.get(name)
        if pair is not None and kind_of(pair) is kind_of(op) and pair.outputs[: len(op.outputs)] == op.outputs:
            lines = (
                _compare_activation(graph, op, other, pair)
                + _compare_rounding(graph, op, other, pair)
                + _compare_arithmetic(graph, op, pair)
                + _compare_formula(op, pair)
                + _compare_numbers(op, pair, _find_factor(other, writers.find(next(iter(pair.inputs), ""), "Mul")))
            )
            if lines:
                found[name] = ", ".join(lines)
    return found


def rounding_of(op: Op) -> str:
    """How an operator of dynamic range rounds its real data: its arithmetic; "" otherwise."""
    return str(op["arithmetic"]) if is_dynamic(op) else ""


def declared_roundings(graph: Graph, other: Graph, names: Iterable[str], stated: str) -> set[str]:
    """How else than the source an operator of the result may round its data: not at all, or by the range of the whole tensor, where the
    result says that the source's rounds them; in LiteRT, which does not know that range, by rows or not at all; and there as the source
    says that its own source did.

    Args:
        graph, other: the canonical graphs of source and result.
        names: of the operator's outputs in either.
        stated: how the source's operator rounds its data; see rounding_of().
    """
    names = set(names)
    noted, before = (read_entries(item.metadata, DYNAMIC_RANGE) for item in (other, graph))
    found = {"", "dynamic_tensor"} if stated and any(noted.get(name) == stated for name in names) else set()
    in_litert = has_tflite_history(other.metadata) or not names.isdisjoint(read_names(other.metadata, IN_TFLITE))
    if in_litert and not graph.is_from("tflite"):
        found |= {str(before[name]) for name in names if name in before} | ({"", "dynamic"} if stated in OF_WHOLE_TENSORS else set())
    return found


def _compare_rounding(graph: Graph, op: Op, other: Graph, pair: Op) -> list[str]:
    """An operator of the result that rounds its data otherwise than the source's, where the conversion did not declare it; that it does not
    round them is told from its values."""
    own, its = rounding_of(op), rounding_of(pair)
    if not its or its == own or its in declared_roundings(graph, other, (*op.outputs, *pair.outputs), own):
        return []
    return [f"the data are quantized differently ({its} instead of {own or 'none'})"]


def _compare_arithmetic(graph: Graph, op: Op, pair: Op) -> list[str]:
    """Another kernel's additions or averages than those that the source names; of a side that names none, the values tell."""
    own, its = (str(item.attributes.get("arithmetic", "")) for item in (op, pair))
    if own == its or not {own, its}.issubset((*ADDITIONS, *TORCH_AVERAGES)) or rounds_alike(graph, op, its):
        return []
    return [f"the arithmetic is {its} instead of {own}"]


def has_same_activation(graph: Graph, op: Op, other: Graph, pair: Op) -> bool:
    """Whether the activations of two operators are one, or leave the same integers of their outputs' quantizations."""
    own, its = (str(item.attributes.get("activation", "")) for item in (op, pair))
    tensor, there = graph[op.outputs[0]], other[pair.outputs[0]]
    if own == its or tensor.quantization is None or there.quantization is None:
        return own == its
    return _activation_limits(tensor, own) == _activation_limits(there, its)


def _compare_activation(graph: Graph, op: Op, other: Graph, pair: Op) -> list[str]:
    if has_same_activation(graph, op, other, pair) or graph[op.outputs[0]].is_quantized != other[pair.outputs[0]].is_quantized:
        return []
    own, its = (item.attributes.get("activation") or "none" for item in (op, pair))
    return [f"the activation is {its} instead of {own}"]


def _activation_limits(tensor: Tensor, activation: str) -> tuple[float, float]:
    """The float values of the lowest and the highest integer that an activation leaves."""
    assert tensor.quantization is not None
    low, high = clip_range(tensor, ACTIVATIONS[activation])
    zero_point, scale = tensor.quantization.point, tensor.quantization.step
    return (low - zero_point) * scale, (high - zero_point) * scale


def _find_factor(graph: Graph, op: Op | None) -> float:
    """The constant by which a Mul multiplies its data, as formats write Softmax's beta; 1 without one."""
    if op is None:
        return 1.0
    constants = [tensor for tensor in map(graph.__getitem__, op.inputs) if tensor.data is not None and not tensor.is_quantized]
    return float(constants[0].data.reshape(-1)[0]) if constants and constants[0].data is not None and constants[0].data.size == 1 else 1.0


def _compare_formula(op: Op, pair: Op) -> list[str]:
    """Another formula of one function, which a coarse quantization hardly shows."""
    own, its = (str(item["approximate"]) if "approximate" in kind_of(op).attributes else "" for item in (op, pair))
    return [f"approximate is {its!r} instead of {own!r}"] if own != its else []


def _compare_numbers(op: Op, pair: Op, factor: float) -> list[str]:
    """Other numbers that are no integers, defaults included; a factor before the result's Softmax counts as its beta."""
    found = []
    for name, spec in kind_of(op).attributes.items():
        if spec.sort != "number":
            continue
        try:
            own, its = float(op[name]), float(pair[name])
        except KeyError:
            continue
        if op.kind == "Softmax" and name == "beta" and isclose(own, its * factor, rel_tol=_ROUNDING):
            continue
        if not isclose(own, its, rel_tol=_ROUNDING):
            found.append(f"{name} is {its:g} instead of {own:g}")
    return found


#: By how many steps of its quantization an end may be off: what is halfway between two of them, kernels round to either side.
_TIE = 0.75
#: By what share ends of float values may be off: formats hold them as float32.
_LIMIT_ROUNDING = 1e-5

Limits = tuple[float, float]


def compare_limits(graph: Graph, other: Graph, declared: Collection[str]) -> dict[str, str]:
    """Return the tensors with other limits than in the source, or whose operators read floats with such, in words, by name.

    Limits that differ by channel are those of the channel where they are closest. Per-channel tensors are not compared, nor are tensors of
    another kind of operator, which may contain the limits.

    Args:
        graph, other: the canonical graphs of source and result; tensors of one name are the same.
        declared: names of the tensors of which the conversion declared that they have another quantization.
    """
    writers, others = graph.producers(), other.producers()
    found: dict[str, str] = {}
    same = ((name, "its values lie", name, name) for name in writers.keys() & others.keys())
    pairs = ((op, a, b) for op, a, b in paired_inputs(graph, other) if not (a.is_quantized or b.is_quantized))
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
        function: what the operator computes whose values are passed on to the tensor: its kind, or what all those are that conversions make
            of each other; "" without one, or for data movement and choices.
        names: of the tensors from there on.
        step: the coarsest of their quantizations; 0 where they have none.
    """

    limits: Limits
    function: str
    names: frozenset[str]
    step: float

    @classmethod
    def of(cls, graph: Graph, writers: Mapping[str, Op], name: str, *, closest: bool = False) -> _Ends:
        """Follow a tensor back; With `closest`, limits that differ by channel are those of the channel that has the closest ones."""
        low, high, names = -inf, inf, {name}
        while True:
            op = writers.get(name)
            for ends in (_quantized_range(graph[name]), operator_limits(graph, op, closest=closest)):
                low, high = max(low, ends[0]), min(high, ends[1])
            name = _find_passed_input(graph, op, closest=closest)
            if not name:
                return cls(
                    (low, high),
                    "" if op is None else _name_function(kind_of(op)),
                    frozenset(names),
                    max(_step_size(graph[item]) for item in names),
                )
            names.add(name)


def _name_function(kind: Kind) -> str:
    """See _Ends.function."""
    if kind.rule != "real" or kind.chooses:
        return ""
    return "product" if kind.sums_products else "mean" if kind.averages else "sum" if kind.sum_sign else kind.name


def _quantized_range(tensor: Tensor) -> Limits:
    if tensor.per_tensor is None or "int" not in tensor.dtype:
        return -inf, inf
    low, high = affine_range(tensor.per_tensor, tensor.dtype)
    return float(low[0]), float(high[0])


def _step_size(tensor: Tensor) -> float:
    return 0.0 if tensor.per_tensor is None else tensor.per_tensor.step


def operator_limits(graph: Graph, op: Op | None, *, closest: bool = False) -> Limits:
    """Return the limits that an operator by itself sets, with its constants and its activation, whatever its other inputs are; see
    _Ends.of()."""
    if op is None:
        return -inf, inf
    given = {name: (-inf, inf) if (value := _constant_number(graph, name)) is None else (value, value) for name in op.inputs if name}
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
    if kind.clips or kind.rule == "convert" or kind.keeps_elements or kind.copies:
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


def _format_limits(limits: Limits) -> str:
    return f"between {limits[0]:.6g} and {limits[1]:.6g}"
