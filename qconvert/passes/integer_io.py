"""integer_io: real graph inputs and outputs that are quantized at once, or come from integers, become the integers themselves.

The mirror of float_io: whoever runs the model quantizes and dequantizes, with the scales of its inputs and outputs.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph
from qconvert.operators import kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter, dequantized_source


def run(graph: Graph, target: Target | None, *, io: str = "") -> PassResult:
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
