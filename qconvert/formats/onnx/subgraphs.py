"""Functions as graphs inside nodes: what they capture they read from outside by its name there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.initializers import inline
from qconvert.formats.onnx.nodes import graph_proto, used_nodes, write_ops
from qconvert.graph import Graph, Op

__all__ = ["subgraph"]

#: A constant of more bytes stands in the main graph, where it can go to a file compared with the model.
_LARGE = 2**20


def subgraph(op: Op, b: Builder, attribute: str, formal: int, captured: Sequence[str]) -> Any:
    """The onnx.GraphProto of a function that an operator names; the node that gets it has to be added next.

    Args:
        op: the operator.
        b: the graph around.
        attribute: that names the function.
        formal: how many of the function's inputs are inputs of the graph inside the node.
        captured: the outer tensors that are the other inputs.
    """
    function = b.functions[str(op[attribute])]
    for name in captured:
        b.stored_value(name)
    graph = _rename_values(function, formal, captured, b)
    child = b.inner_builder(graph)
    write_ops(child)
    outputs = []
    for name in graph.outputs:
        tensor = graph[name]
        if name in graph.inputs:  # onnxruntime takes no outer value for an output
            name = child.node("Identity", [name], hint=f"{name}/given")[0]
        child.declare_output(child.stored_value(name) if name in graph.tensors else name, tensor)
        outputs.append(name)
    nodes, named = used_nodes(child, outputs)
    inner = {name: data for name, data in child.initializers.items() if name in named}
    for name in [name for name, data in inner.items() if data.nbytes > _LARGE and name not in outputs]:
        b.hoist(name, inner.pop(name))
    written = {name for node in nodes for name in node.output}
    formals = graph.inputs[:formal]
    b.reads_inside(named - written - inner.keys() - {*formals, ""})
    return graph_proto(child, formals, outputs, nodes, inline(inner))


def _rename_values(function: Graph, formal: int, captured: Sequence[str], b: Builder) -> Graph:
    """The function with the outer names of what it captures, and with names of its own that nothing around it has."""
    names = dict(zip(function.inputs[formal:], captured, strict=True))
    if len(set(captured)) != len(captured):
        raise UnsupportedError(
            "a function that takes the same value twice cannot be written to ONNX",
            where=f"function {function.name!r}",
            rule="duplicate-input",
        )
    names |= b.inner_names(tensor for name, tensor in function.tensors.items() if name not in names)
    tensors = {names[name]: replace(tensor, name=names[name]) for name, tensor in function.tensors.items()}
    ops = tuple(
        replace(
            op,
            inputs=tuple(names[name] if name else "" for name in op.inputs),
            outputs=tuple(names[name] if name else "" for name in op.outputs),
        )
        for op in function.ops
    )
    inputs, outputs = (tuple(names[name] for name in listed) for listed in (function.inputs, function.outputs))
    return replace(function, tensors=tensors, ops=ops, inputs=inputs, outputs=outputs)
