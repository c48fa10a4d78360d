"""Which tensors of an operator are data, and which weights and biases: what the rules of targets ask."""

from __future__ import annotations

from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.kinds import KINDS

__all__ = ["computed_on", "data_of", "quantized_data", "weights_of"]


def data_of(graph: Graph, op: Op, *, results: bool = True) -> list[Tensor]:
    """The tensors that hold an operator's data: no shapes, indices, weights or biases."""
    names = KINDS[op.kind].moved(op)
    return [graph[name] for name in (*names, *(op.outputs if results else ())) if name]


def computed_on(graph: Graph, op: Op) -> list[Tensor]:
    """The inputs whose values an operator computes on, weights and biases too."""
    return [graph[name] for name in KINDS[op.kind].named(op, "data", "factor", "weights", "bias")]


def quantized_data(graph: Graph, op: Op) -> list[Tensor]:
    """The quantized data of an operator; a Dequantize of a constant is storage, not computing, and of an Opaque nothing is known."""
    if op.kind == "Opaque" or (op.kind == "Dequantize" and all(graph[name].is_constant for name in op.inputs if name)):
        return []
    return [tensor for tensor in data_of(graph, op) if tensor.is_quantized]


def weights_of(graph: Graph, op: Op) -> tuple[Tensor, Tensor] | None:
    """Data and weights of an operator that multiplies quantized data with weights O,I,spatial; None for others."""
    if not KINDS[op.kind].has_weights or not graph[op.inputs[0]].is_quantized:
        return None
    return graph[op.inputs[0]], graph[op.inputs[1]]
