"""separate_pads: a SpaceToBatch whose kernel fills what it pads wrongly gets its data from a Pad. Exact.

    SpaceToBatch (pads 1, 1)        Pad (1, 1) -> SpaceToBatch (pads 0, 0)

Exporters write dilated convolutions between such operators; tflite-micro's kernel pads integers with 0, and floats with what the memory
holds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.errors import format_count
from qconvert.graph import Graph
from qconvert.graph.schema import Op
from qconvert.operators.space import block_axes
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Put a Pad before each operator of which the target's kernels say a fault."""
    if target is None:
        return graph, ()
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("SpaceToBatch"):
        if target.kernels.fault(graph, op):
            _separate(rewriter, op)
    return rewriter.finish_with(lambda count: f"{format_count(count, 'SpaceToBatch operator')} padded by a Pad")


def _separate(rewriter: Rewriter, op: Op) -> None:
    """Replace an operator, where its pads and the rank of its data are known."""
    graph, data = rewriter.graph, rewriter.graph[op.inputs[0]]
    pads, blocks = graph.constant(op.inputs[2]), graph.constant(op.inputs[1])
    if pads is None or blocks is None or data.shape is None:
        return
    widths = np.zeros((2, len(data.shape)), np.int64)
    widths[:, block_axes(str(op["data_format"]), len(data.shape), blocks.size)] = np.split(pads.reshape(-1), 2)
    padded = rewriter.pad(data, widths.reshape(-1).tolist(), op.name, op.source)
    unpadded = rewriter.constant(f"{op.name}/unpadded", [0] * pads.size)
    rewriter.replace(op, replace(op, inputs=(padded, op.inputs[1], unpadded)))
