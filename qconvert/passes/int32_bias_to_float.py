"""int32_bias_to_float: int32 biases of quantized operators become float32.

Each is value * scale, computed in float64 and rounded once. Exact as long as the integers have at most 24 bits; above, float32 has fewer
digits than the integer. The note says how many values cannot be taken back to the same integer.
"""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import scale_and_zero_point
from qconvert.graph import Graph, Op, Tensor
from qconvert.plugins import Change, Cost, PassResult, Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.requantize import quantized_bias


def run(graph: Graph, target: Target | None) -> PassResult:
    """Change the biases of Conv, ConvTranspose and Gemm with quantized data and weights. A bias that others read too is copied."""
    rewriter, found = Rewriter(graph), dict[str, list[Op]]()
    for op in rewriter:
        bias = quantized_bias(graph, op)
        if bias is not None and bias.dtype == "int32" and bias.quantization is not None:
            found.setdefault(bias.name, []).append(op)
    if not found:
        return graph, ()
    made: list[str] = []
    values = lost = 0
    for name, ops in found.items():
        shared = len(rewriter.readers[name]) > len(ops) or name in graph.public
        data = graph[name].float_values().astype(np.float32)
        bias = Tensor(rewriter.fresh(f"{name}/float32") if shared else name, "float32", graph[name].shape, data)
        made.append(rewriter.define(bias))
        values += data.size
        lost += _count_lost_values(graph[name], bias)
        for op in ops:
            rewriter.replace(op, op.with_input(2, bias.name))
    words = "all of them round to the same integers" if not lost else f"{lost} of them round to another integer"
    costs = tuple(Cost(name, None, None) for name in made)
    note = Change(f"{len(made)} biases of {values} values are float32; {words}", costs=costs)
    return rewriter.finish(), (note,)


def _count_lost_values(bias: Tensor, real: Tensor) -> int:
    """Return how many float32 values lie nearer to another integer's."""
    assert bias.data is not None and real.data is not None
    scale, _ = scale_and_zero_point(bias.require_quantization(), bias.data.shape)
    return int((np.rint(real.data.astype(np.float64) / scale.astype(np.float64)) != bias.data).sum())
