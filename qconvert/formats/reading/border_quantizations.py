"""Quantizations of the inputs and outputs of functions: what an operator gives a function has the quantization on which the function takes
it."""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op, Quantization, Tensor

__all__ = ["with_input_quantization", "with_output_quantization"]


def with_input_quantization(graph: Graph, index: int, quantization: Quantization | None) -> Graph:
    """The function whose input `index` has another quantization, or on none: a Reinterpret gives it back the one that its operators
    know."""
    old = graph[graph.inputs[index]]
    if old.quantization == quantization:
        return graph
    new = replace(old, name=graph.names().fresh(f"{old.name}/given"), quantization=quantization)
    inputs = tuple(new.name if place == index else name for place, name in enumerate(graph.inputs))
    return graph.evolve(tensors=[new], ops=(Op("Reinterpret", (new.name,), (old.name,)), *graph.ops), inputs=inputs)


def with_output_quantization(graph: Graph, index: int, quantization: Quantization | None) -> Graph:
    """Likewise of output `index`."""
    old = graph[graph.outputs[index]]
    if old.quantization == quantization:
        return graph
    new: Tensor = replace(old, name=graph.names().fresh(f"{old.name}/given"), data=None, quantization=quantization)
    outputs = tuple(new.name if place == index else name for place, name in enumerate(graph.outputs))
    return graph.evolve(tensors=[new], ops=(*graph.ops, Op("Reinterpret", (old.name,), (new.name,))), outputs=outputs)
