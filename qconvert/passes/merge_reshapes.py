"""merge_reshapes: one Reshape instead of a chain of Reshape, Squeeze and Unsqueeze, and none, and no Identity, that changes nothing.

Exact: they move no data, so only the last shape counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Graph, Op, Shape, Tensor
from qconvert.graph.kinds import KINDS
from qconvert.passes import remove_dead_code
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Lets the last of a chain read the data in front of the first; chains of which others read a part keep that part."""
    graph, count = _without_identities(graph)
    readers = graph.consumers()
    fronts: dict[str, str] = {}  # result of an operator of a chain -> the data in front of the chain
    tensors: dict[str, Tensor] = {}
    unused = graph.names(tensors)
    renamed: dict[str, str] = {}
    ops: list[Op] = []
    for op in graph.ops:
        op = replace(op, inputs=tuple(renamed.get(name, name) for name in op.inputs)) if renamed.keys() & set(op.inputs) else op
        if KINDS[op.kind].keeps_order:
            first = fronts[op.outputs[0]] = fronts.get(op.inputs[0], op.inputs[0])
            result, source = graph[op.outputs[0]], graph[first]
            if source.shape is not None and source.shape == result.shape and result.name not in graph.public and not source.is_constant:
                renamed[result.name] = first
                count += 1
                continue
            if first != op.inputs[0] and (sizes := _sizes(result.shape)) is not None and len(readers[op.inputs[0]]) == 1:
                name = unused.fresh(f"{result.name}/merged_shape")
                tensors[name] = Tensor(name, "int64", sizes.shape, sizes)
                op = Op("Reshape", (first, name), op.outputs, {}, op.source)
                count += 1
        ops.append(op)
    if not count:
        return graph, ()
    changed, _ = remove_dead_code.run(graph.evolve(tensors=tensors.values(), ops=ops), target)
    return changed, (f"{count} Reshape, Squeeze, Unsqueeze and Identity are merged with others, or gone",)


def _without_identities(graph: Graph) -> tuple[Graph, int]:
    """An Identity that only gives an output of the graph its name: the operator before it writes the output itself."""
    producers, readers = graph.producers(), graph.consumers()
    outputs = set(graph.outputs)
    names: dict[str, str] = {}
    for op in graph.ops:
        source, result = (graph[name] for name in (op.inputs[0], op.outputs[0])) if op.kind == "Identity" else (None, None)
        if source is None or result is None or result.name not in outputs or source.name in outputs:
            continue
        same = (source.dtype, source.quantization, source.shape) == (result.dtype, result.quantization, result.shape)
        if same and source.name in producers and len(readers[source.name]) == 1:
            names[source.name] = result.name
    if not names:
        return graph, 0
    ops = [op for op in graph.ops if not (op.kind == "Identity" and op.inputs[0] in names)]
    renamed = [replace(op, outputs=tuple(names.get(name, name) for name in op.outputs)) for op in ops]
    signatures = tuple(
        item if item.function else replace(item, outputs={key: names.get(name, name) for key, name in item.outputs.items()})
        for item in graph.signatures
    )
    return graph.evolve(ops=renamed, signatures=signatures), len(names)


def _sizes(shape: Shape | None) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    """A shape for a Reshape; None if more than one size is known only at run time."""
    if shape is None or sum(isinstance(size, str) for size in shape) > 1:
        return None
    return np.array([-1 if isinstance(size, str) else size for size in shape], np.int64)
