"""float_io: quantized graph inputs and outputs become float, with the Quantize and Dequantize inside the graph."""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op, Tensor
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target, *, io_float: bool = False) -> tuple[Graph, tuple[str, ...]]:
    """Gives float inputs and outputs their old names; the integer tensors get a suffix. Does nothing unless `io_float`."""
    names = [name for name in dict.fromkeys((*graph.inputs, *graph.outputs)) if graph[name].is_quantized]
    if not io_float or not names:
        return graph, ()
    unused = graph.names()
    inner = {name: unused.fresh(f"{name}/{graph[name].dtype}") for name in names}
    added: list[Tensor] = []
    for name in names:
        added += [replace(graph[name], name=inner[name]), Tensor(name, "float32", graph[name].shape)]
    before = [Op("Quantize", (name,), (inner[name],)) for name in graph.inputs if name in inner]
    after = [Op("Dequantize", (inner[name],), (name,)) for name in graph.outputs if name in inner and name not in graph.inputs]
    ops = [
        replace(
            op,
            inputs=tuple(inner.get(name, name) for name in op.inputs),
            outputs=tuple(inner.get(name, name) for name in op.outputs),
        )
        for op in graph.ops
    ]
    return graph.evolve(tensors=added, ops=[*before, *ops, *after]), (f"{len(names)} inputs and outputs are float",)
