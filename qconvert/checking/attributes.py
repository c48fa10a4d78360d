"""Numbers and fused activations that operators of one result have otherwise in source and result: clipping, slopes, small terms that keep
a divisor from zero. Few inputs bring these out."""

from __future__ import annotations

from math import isclose

from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS, clip_range
from qconvert.graph.kinds import KINDS

__all__ = ["other_attributes", "same_activation"]

#: Formats hold such numbers as float32.
_ROUNDING = 2.0**-22


def other_attributes(graph: Graph, other: Graph) -> dict[str, str]:
    """What differs, by the name of the tensor that both operators compute, in words; operators of other kinds are not compared.

    Args:
        graph, other: the canonical graphs of source and result; tensors of one name are the same.
    """
    writers = other.producers()
    found = {}
    for op in graph.ops:
        name = next(filter(None, op.outputs), "")
        pair = writers.get(name)
        if pair is not None and pair.kind == op.kind and pair.outputs[: len(op.outputs)] == op.outputs:
            lines = _activation(graph, op, other, pair) + _numbers(op, pair, _factor(other, writers.get(next(iter(pair.inputs), ""))))
            if lines:
                found[name] = ", ".join(lines)
    return found


def same_activation(graph: Graph, op: Op, other: Graph, pair: Op) -> bool:
    """Whether the activations of two operators are one, or leave the same integers of their outputs' grids."""
    own, its = (str(item.attributes.get("activation", "")) for item in (op, pair))
    tensor, there = graph[op.outputs[0]], other[pair.outputs[0]]
    if own == its or tensor.quantization is None or there.quantization is None:
        return own == its
    return _limits(tensor, own) == _limits(there, its)


def _activation(graph: Graph, op: Op, other: Graph, pair: Op) -> list[str]:
    if same_activation(graph, op, other, pair) or graph[op.outputs[0]].is_quantized != other[pair.outputs[0]].is_quantized:
        return []
    own, its = (item.attributes.get("activation") or "none" for item in (op, pair))
    return [f"the activation is {its} instead of {own}"]


def _limits(tensor: Tensor, activation: str) -> tuple[float, float]:
    """The real values of the lowest and the highest integer that an activation leaves."""
    assert tensor.quantization is not None
    low, high = clip_range(tensor, ACTIVATIONS[activation])
    zero_point, scale = int(tensor.quantization.zero_point.flat[0]), float(tensor.quantization.scale.flat[0])
    return (low - zero_point) * scale, (high - zero_point) * scale


def _factor(graph: Graph, op: Op | None) -> float:
    """The constant by which an operator multiplies its data, as formats spell Softmax's beta; 1 if it does no such thing."""
    if op is None or op.kind != "Mul":
        return 1.0
    constants = [tensor for tensor in map(graph.__getitem__, op.inputs) if tensor.data is not None and not tensor.is_quantized]
    return float(constants[0].data.reshape(-1)[0]) if constants and constants[0].data is not None and constants[0].data.size == 1 else 1.0


def _numbers(op: Op, pair: Op, factor: float) -> list[str]:
    """Other numbers that are no integers, defaults included; a factor in front of the result's Softmax counts as its beta."""
    found = []
    for name, spec in KINDS[op.kind].attributes.items():
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
