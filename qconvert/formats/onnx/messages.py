"""Walks over the nodes of an ONNX protobuf and the graphs in their attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from qconvert.formats.onnx.mapped_constants import Files

__all__ = ["all_nodes", "clear_default_domains", "embed_constants", "graph_captures", "node_captures", "subgraphs"]

#: Types of attributes that hold graphs (onnx.proto, AttributeProto.AttributeType).
_GRAPH, _GRAPHS = 5, 10


def embed_constants(nodes: Iterable[Any], files: Files) -> None:
    """Puts the bytes of external constants into the attributes of nodes, those in subgraphs included."""
    for node in nodes:
        for attribute in node.attribute:
            for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
                files.embed_data(tensor)
        for graph in subgraphs(node):
            for tensor in graph.initializer:
                files.embed_data(tensor)
            embed_constants(graph.node, files)


def clear_default_domains(nodes: Iterable[Any]) -> None:
    """Leaves ai.onnx, the domain by default, out of nodes, those in subgraphs included."""
    for node in nodes:
        if node.domain in ("", "ai.onnx"):
            node.ClearField("domain")
        for graph in subgraphs(node):
            clear_default_domains(graph.node)


def subgraphs(node: Any) -> list[Any]:
    """The GraphProtos in the attributes of a NodeProto."""
    found: list[Any] = []
    for item in node.attribute:
        if item.type == _GRAPH:
            found.append(item.g)
        elif item.type == _GRAPHS:
            found += item.graphs
    return found


def all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """NodeProtos, and those of the graphs inside them."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def node_captures(node: Any) -> Iterator[str]:
    """The names that the subgraphs of a NodeProto take from outside, in order."""
    for graph in subgraphs(node):
        yield from graph_captures(graph)


def graph_captures(graph: Any) -> Iterator[str]:
    """The names that a GraphProto inside a node takes from outside, in order."""
    defined = {value.name for value in (*graph.input, *graph.initializer)} | {name for child in graph.node for name in child.output}
    for child in graph.node:
        yield from (name for name in (*child.input, *node_captures(child)) if name and name not in defined)
    yield from (value.name for value in graph.output if value.name not in defined)
