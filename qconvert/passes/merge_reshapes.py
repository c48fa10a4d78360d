"""merge_reshapes: one Reshape instead of a chain of Reshape, Squeeze and Unsqueeze, and none, and no Identity, that changes nothing.

Exact: they move no data, so only the last shape counts.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Shape
from qconvert.operators import kind_of
from qconvert.operators.sizes import reshape_sizes
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def merge_reshapes(graph: Graph, target: Target | None) -> PassResult:
    """Let the last of a chain read what the first reads; chains of which others read a part keep that part."""
    graph, count = _remove_identities(graph)
    rewriter = Rewriter(graph)
    starts: dict[str, str] = {}  # result of an operator of a chain -> what the first of the chain reads
    for op in rewriter:
        if not kind_of(op).keeps_order:
            continue
        data = rewriter.resolve(op.inputs[0])
        first = starts[op.name] = starts.get(data, data)
        result, source = graph[op.name], graph[first]
        if source.shape is not None and source.shape == result.shape and result.name not in graph.public and not source.is_constant:
            rewriter.forward(result.name, first)
            rewriter.remove(op)
            count += 1
        elif first != data and (sizes := _sizes(result.shape)) is not None and len(rewriter.readers[data]) == 1:
            shape = rewriter.constant(f"{result.name}/merged_shape", sizes)
            rewriter.replace(op, op.derive("Reshape", (first, shape), op.outputs))
            count += 1
    note = "{} Reshape, Squeeze, Unsqueeze and Identity are merged with others or removed".format
    return rewriter.finish_with(note, count, prune=True)


def _remove_identities(graph: Graph) -> tuple[Graph, int]:
    """Remove each Identity that only gives an output of the graph its name: the operator before it writes the output itself."""
    rewriter = Rewriter(graph)
    count = 0
    for op in rewriter.of_kind("Identity"):
        source, result = graph[op.inputs[0]], graph[op.name]
        if result.name not in graph.outputs or source.name in graph.outputs:
            continue
        same = source.shares_quantization(result) and source.shape == result.shape
        if same and source.name in rewriter.producers and len(rewriter.readers[source.name]) == 1:
            rewriter.rename(source.name, result.name)
            rewriter.remove(op)
            count += 1
    signatures = tuple(
        item if item.function else replace(item, outputs={key: rewriter.resolve(name) for key, name in item.outputs.items()})
        for item in graph.signatures
    )
    return (rewriter.finish(signatures=signatures), count) if count else (graph, 0)


def _sizes(shape: Shape | None) -> list[int] | None:
    """Return a shape for a Reshape; None if more than one size is known only at run time."""
    if shape is None or sum(isinstance(size, str) for size in shape) > 1:
        return None
    return reshape_sizes(shape)
