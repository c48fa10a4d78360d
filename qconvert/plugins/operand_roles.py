"""Which tensors of an operator are data, and which weights and biases: what the rules of targets ask."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of

__all__ = ["addend", "computed_inputs", "data_of", "quantized_data", "weights_of"]


def data_of(graph: Graph, op: Op, *, results: bool = True) -> list[Tensor]:
    """The tensors that hold an operator's data: no shapes, indices, weights or biases."""
    names = kind_of(op).moved_inputs(op)
    return [graph[name] for name in (*names, *(op.outputs if results else ())) if name]


def computed_inputs(graph: Graph, op: Op) -> list[Tensor]:
    """The inputs whose values an operator computes on, weights and biases too."""
    return [graph[name] for name in kind_of(op).inputs_with_role(op, "data", "factor", "weights", "bias")]


def quantized_data(graph: Graph, op: Op) -> list[Tensor]:
    """The quantized data of an operator; a Dequantize of a constant is storage, not computing, and of an Opaque nothing is known."""
    if op.kind == "Opaque" or (op.kind == "Dequantize" and all(graph[name].is_constant for name in op.inputs if name)):
        return []
    return [tensor for tensor in data_of(graph, op) if tensor.is_quantized]


def weights_of(graph: Graph, op: Op) -> tuple[Tensor, Tensor] | None:
    """Data and weights of an operator that multiplies quantized data with weights O,I,spatial; None for others."""
    if not kind_of(op).has_weights or not graph[op.inputs[0]].is_quantized:
        return None
    return graph[op.inputs[0]], graph[op.inputs[1]]


def addend(graph: Graph, op: Op, producers: Mapping[str, Op]) -> Tensor | None:
    """The constant of one element that an operator adds to what a convolution over one dimension gives; None if it does not."""
    name = _varying_operand(graph, op)
    number = None if name is None else graph[op.inputs[1 - op.inputs.index(name)]]
    if name is None or number is None or number.data is None or number.data.size != 1 or len(number.data.shape) > 3:
        return None
    maker = producers.get(name)
    while maker is not None and maker.kind != "Conv":
        before = maker.inputs[0] if maker.kind == "Identity" else _varying_operand(graph, maker)
        maker = None if before is None or maker.attributes.get("activation") else producers.get(before)
    if maker is None or maker.attributes.get("activation") or maker["data_format"] != "channels_first":
        return None
    result = graph[maker.outputs[0]]
    return number if result.rank == 3 and not result.is_quantized else None


def _varying_operand(graph: Graph, op: Op) -> str | None:
    """What a constant is added to, or taken from; None if it is another operator."""
    if op.kind not in ("Add", "Sub") or graph[op.outputs[0]].is_quantized:
        return None
    data = [name for name in op.inputs if not graph[name].is_constant]
    return data[0] if len(data) == 1 and (op.kind == "Add" or data[0] == op.inputs[0]) else None
