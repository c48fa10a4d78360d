"""The quantized operators of a graph that was read literally, without what metadata restore."""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph
from qconvert.plugins import pass_named

__all__ = ["fuse_quantized_ops"]

#: What makes quantized operators of the operators that a runtime runs as such.
_PASSES = ("absorb_quantization", "fuse_dynamic")


def fuse_quantized_ops(graph: Graph) -> Graph:
    """The graph with quantized operators where a runtime finds them, in functions too."""
    for item in map(pass_named, _PASSES):
        graph, _ = item.run(graph, None)
        graph = replace(graph, functions={name: item.run(inner, None)[0] for name, inner in graph.functions.items()})
    return graph
