"""pool_to_mean: an average over all positions becomes a mean along the two axes.

The same real value. Runtimes that round averages of integers otherwise than means of real values (MNN) then round it once, and rightly;
where the source's kernel rounds a tie otherwise, such a result is another by one step. Averages of real values too: MNN passes the scale of
a layer's data back through a pool, to tensors that have none.
"""

from __future__ import annotations

import numpy as np

from qconvert.graph import Graph, Op, Tensor
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Changes GlobalAveragePool, and AveragePool whose window is the whole plane, without padding or activation."""
    tensors: dict[str, Tensor] = {}
    names = graph.names(tensors)
    ops: list[Op] = []
    for op in graph.ops:
        if not _is_whole(graph, op):
            ops.append(op)
            continue
        values = np.array((2, 3) if op["data_format"] == "channels_first" else (1, 2), np.int64)
        axes = names.fresh(f"{op.outputs[0]}/axes")
        tensors[axes] = Tensor(axes, "int64", values.shape, values)
        ops.append(Op("ReduceMean", (op.inputs[0], axes), op.outputs, {"keepdims": 1}, op.source))
    if not tensors:
        return graph, ()
    return graph.evolve(tensors=tensors.values(), ops=ops), (f"{len(tensors)} averages over all positions are means along two axes",)


def _is_whole(graph: Graph, op: Op) -> bool:
    """Whether an operator averages each channel of two-dimensional data as a whole."""
    if op.kind not in ("AveragePool", "GlobalAveragePool"):
        return False
    shape = graph[op.inputs[0]].shape or ()
    if len(shape) != 4:
        return False
    if op.kind == "GlobalAveragePool":
        return True
    plane = shape[2:] if op["data_format"] == "channels_first" else shape[1:3]
    result = graph[op.outputs[0]].shape or ()
    single = result[2:] if op["data_format"] == "channels_first" else result[1:3]
    return tuple(op["kernel_shape"]) == tuple(plane) and tuple(single) == (1, 1) and not any(op["pads"]) and not op["activation"]
