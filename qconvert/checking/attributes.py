"""What operators of one name state otherwise in source and result: attributes, fused activations and roundings. Few inputs produce values
that show such a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

from qconvert.arithmetic import ADDITIONS, TORCH_AVERAGES
from qconvert.checking.float_sums import declared_roundings, rounding_of
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS, clip_range
from qconvert.kernels.torch_forms import rounds_alike
from qconvert.operators import kind_of

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
            factor = _find_factor(other, writers.find(next(iter(pair.inputs), ""), "Mul"))
            if lines := list(_compare_operators(graph, op, other, pair, factor)):
                found[name] = ", ".join(lines)
    return found


def _compare_operators(graph: Graph, op: Op, other: Graph, pair: Op, factor: float) -> Iterator[str]:
    """In words, what two operators of one kind state otherwise; a factor before the result's Softmax counts as its beta."""
    if graph[op.outputs[0]].is_quantized == other[pair.outputs[0]].is_quantized and not has_same_activation(graph, op, other, pair):
        own, its = (str(item.attributes.get("activation") or "none") for item in (op, pair))
        yield f"the activation is {its} instead of {own}"
    own, its = rounding_of(op), rounding_of(pair)  # of a result that does not round its data, the values tell
    if its and its != own and its not in declared_roundings(graph, other, (*op.outputs, *pair.outputs), own):
        yield f"the data are quantized differently ({its} instead of {own or 'none'})"
    own, its = (str(item.attributes.get("arithmetic", "")) for item in (op, pair))  # of a side that names none, the values tell
    if own != its and {own, its}.issubset((*ADDITIONS, *TORCH_AVERAGES)) and not rounds_alike(graph, op, its):
        yield f"the arithmetic is {its} instead of {own}"
    own, its = (str(item["approximate"]) if "approximate" in kind_of(op).attributes else "" for item in (op, pair))
    if own != its:  # another formula of one function, which a coarse quantization hardly shows
        yield f"approximate is {its!r} instead of {own!r}"
    for name, spec in kind_of(op).attributes.items():
        if spec.sort == "number":
            stated, found = float(op[name]), float(pair[name])
            is_beta = op.kind == "Softmax" and name == "beta"
            if not any(isclose(stated, number, rel_tol=_ROUNDING) for number in (found, found * factor if is_beta else found)):
                yield f"{name} is {found:g} instead of {stated:g}"


def has_same_activation(graph: Graph, op: Op, other: Graph, pair: Op) -> bool:
    """Whether the activations of two operators are one, or leave the same integers of their outputs' quantizations."""
    own, its = (str(item.attributes.get("activation", "")) for item in (op, pair))
    tensor, there = graph[op.outputs[0]], other[pair.outputs[0]]
    if own == its or tensor.quantization is None or there.quantization is None:
        return own == its
    return _activation_limits(tensor, own) == _activation_limits(there, its)


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
