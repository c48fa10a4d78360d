"""Graph inputs and outputs as float values, and as integers.

float_io: quantized graph inputs and outputs become float, with the Quantize and Dequantize inside the graph.

integer_io: real graph inputs and outputs that are quantized at once, or come from integers, become the integers themselves.

The mirror of float_io: whoever runs the model quantizes and dequantizes, with the scales of its inputs and outputs.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter, dequantized_source


def float_io(graph: Graph, target: Target, *, io: str = "") -> PassResult:
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


def integer_io(graph: Graph, target: Target | None, *, io: str = "") -> PassResult:
    """Remove the Quantize after inputs and the Dequantize before outputs; the integers take the names.

    Do nothing unless `io` is "integer".
    """
    if io != "integer":
        return graph, ()
    rewriter, renamed = Rewriter(graph), dict[str, str]()
    kept = {*graph.inputs, *graph.public}
    for name in graph.inputs:
        op = rewriter.only_reader(name)
        if op is not None and kind_of(op).quantizes and op.name not in graph.public:
            renamed[op.name] = name
            rewriter.remove(op)
    for name in graph.outputs:
        stored = dequantized_source(rewriter.producers, name)
        if stored and name not in rewriter.readers and stored not in kept and stored not in renamed and graph[stored].data is None:
            renamed[stored] = name
            rewriter.remove(rewriter.producers[name])
    if not renamed:
        return graph, ()
    for old, new in renamed.items():
        rewriter.define(replace(graph[old], name=new))
        rewriter.rename(old, new)
    return rewriter.finish(), (f"{len(renamed)} inputs and outputs are integers",)
