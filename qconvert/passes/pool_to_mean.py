"""pool_to_mean: an average over all positions becomes a mean along the two axes.

The same float value. Runtimes that round averages of integers otherwise than means of float values (MNN) then round it once, and rightly;
where the source's kernel rounds a tie otherwise, such a result is another by one step. Averages of float values too: MNN passes the scale
of a layer's data back through a pool, to tensors that have none.
"""

from __future__ import annotations

from qconvert.graph import Graph, Op
from qconvert.operators import kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Change GlobalAveragePool, and AveragePool whose window is the whole plane, without padding or activation."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("AveragePool", "GlobalAveragePool"):
        if _is_whole(graph, op):
            axes = rewriter.constant(f"{op.name}/axes", [2, 3] if op["data_format"] == "channels_first" else [1, 2])
            rewriter.replace(op, op.derive("ReduceMean", (op.inputs[0], axes), op.outputs, keepdims=1))
    return rewriter.finish_with("{} averages over all positions are means along two axes".format)


def _is_whole(graph: Graph, op: Op) -> bool:
    """Whether a pool averages each channel of two-dimensional data as a whole."""
    shape = graph[op.inputs[0]].shape or ()
    if len(shape) != 4:
        return False
    if not kind_of(op).has_windows:
        return True
    plane = shape[2:] if op["data_format"] == "channels_first" else shape[1:3]
    result = graph[op.name].shape or ()
    single = result[2:] if op["data_format"] == "channels_first" else result[1:3]
    return tuple(op["kernel_shape"]) == tuple(plane) and tuple(single) == (1, 1) and not any(op["pads"]) and not op["activation"]
