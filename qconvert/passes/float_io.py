"""float_io: quantized graph inputs and outputs become float, with the Quantize and Dequantize inside the graph."""

from __future__ import annotations

from qconvert.graph import Graph, Op, Tensor
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target, *, io: str = "") -> PassResult:
    """Give float inputs and outputs their old names; the integer tensors get a suffix. Do nothing unless `io` is "float"."""
    names = [name for name in dict.fromkeys((*graph.inputs, *graph.outputs)) if graph[name].is_quantized]
    if io != "float" or not names:
        return graph, ()
    rewriter, inner = Rewriter(graph), dict[str, str]()
    for name in names:
        inner[name] = rewriter.add(f"{name}/{graph[name].dtype}", graph[name], data=graph[name].data)
        rewriter.define(Tensor(name, "float32", graph[name].shape))
        rewriter.relate(name, inner[name])
    for name in graph.inputs:
        if name in inner:
            rewriter.emit(Op("Quantize", (name,), (inner[name],)))
    for op in rewriter:
        rewriter.replace(op, op.with_names(inner))
    for name in graph.outputs:
        if name in inner and name not in graph.inputs:
            rewriter.emit(Op("Dequantize", (inner[name],), (name,)))
    return rewriter.finish(), (f"{len(names)} inputs and outputs are float",)
