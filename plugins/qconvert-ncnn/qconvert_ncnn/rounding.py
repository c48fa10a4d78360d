"""Positions of roundings: ncnn's int8 layers round their data, so a tensor that only they read needs no separate rounding."""

from __future__ import annotations

from qconvert.plugin import Graph, Op
from qconvert_ncnn.quantizations import has_data_quantization, is_int8_layer

#: Kinds that select or move values: rounding before them equals rounding after them.
MOVES = ("MaxPool", "GlobalMaxPool", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Slice", "Split", "Concat")


def is_data_movement(graph: Graph, op: Op) -> bool:
    """Return whether an operator is data movement with one quantization."""
    if op.kind not in MOVES or op.attributes.get("activation"):
        return False
    moved = [name for name in op.inputs if graph[name].is_quantized]
    return all(graph[name].shares_quantization(graph[moved[0]]) for name in (*moved, *op.outputs)) if moved else False


def find_reader_rounded(graph: Graph) -> set[str]:
    """Return the quantized tensors that all of their readers round to their quantization."""
    users, found = graph.consumers(), set[str]()
    for op in reversed(graph.ops):
        for name in op.outputs:
            if name and has_data_quantization(graph[name]) and name not in graph.public and users[name]:
                if all(_is_rounding_reader(graph, user, name, found) for user in users[name]):
                    found.add(name)
    return found


def _is_rounding_reader(graph: Graph, op: Op, name: str, found: set[str]) -> bool:
    if is_int8_layer(graph, op):
        return op.inputs[0] == name
    return is_data_movement(graph, op) and all(output in found for output in op.outputs)


def find_integer_tensors(graph: Graph) -> set[str]:
    """Return the tensors between int8 layers that are integers: a convolution rounds them (its int8_scale_term is above 100)."""
    users, found = graph.consumers(), set[str]()
    for op in graph.ops:
        name = op.outputs[0]
        if op.kind != "Conv" or not is_int8_layer(graph, op) or not has_data_quantization(graph[name]) or name in graph.public:
            continue
        if users[name] and all(is_int8_layer(graph, user) and user.inputs[0] == name for user in users[name]):
            found.add(name)
    return found
