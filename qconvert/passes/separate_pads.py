"""separate_pads: a SpaceToBatch whose kernel fills what it pads wrongly gets its data from a Pad. Exact.

    SpaceToBatch (pads 1, 1)        Pad (1, 1) -> SpaceToBatch (pads 0, 0)

Exporters write dilated convolutions between such operators; tflite-micro's kernel pads integers with 0, and floats with what the memory
holds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.errors import format_count
from qconvert.graph import Graph, Tensor
from qconvert.graph.schema import Op
from qconvert.operators.space import block_axes
from qconvert.plugins import Target
from qconvert.rewriting import Rewriter

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Put a Pad before each operator of which the target's kernels say a fault."""
    rewriter, count = Rewriter(graph), 0
    for op in rewriter if target is not None else ():
        if op.kind == "SpaceToBatch" and target is not None and target.kernels.fault(graph, op):
            count += _separate(rewriter, op)
    return rewriter.finish(), (f"{format_count(count, 'SpaceToBatch operator')} padded by a Pad",) if count else ()


def _separate(rewriter: Rewriter, op: Op) -> bool:
    """Replace an operator, where its pads and the sizes of its data are known."""
    graph, data = rewriter.graph, rewriter.graph[op.inputs[0]]
    pads, blocks = graph.constant(op.inputs[2]), graph.constant(op.inputs[1])
    if pads is None or blocks is None or data.shape is None:
        return False
    before, after = np.split(np.asarray(pads, np.int64).reshape(-1), 2)
    widths = np.zeros((2, len(data.shape)), np.int64)
    widths[:, block_axes(op, len(data.shape), blocks.size)] = before, after
    shape = tuple(
        size + int(low) + int(high) if isinstance(size, int) else size if not (low or high) else "?"
        for size, low, high in zip(data.shape, *widths, strict=True)
    )
    name = rewriter.define(Tensor(rewriter.fresh(f"{op.outputs[0]}/padded"), data.dtype, shape, None, data.quantization))
    constant = rewriter.constant(f"{name}/pads", widths.reshape(-1))
    unpadded = rewriter.constant(f"{op.outputs[0]}/pads", np.zeros_like(np.asarray(pads, np.int64)))
    pad = Op("Pad", (data.name, constant), (name,), {"mode": "constant"}, op.source)
    rewriter.replace(op, pad, replace(op, inputs=(name, op.inputs[1], unpadded)))
    return True
