"""int32_bias_to_float: int32 biases of quantized operators become float32.

Each is value * scale, computed in float64 and rounded once. Exact as long as the integers have at most 24 bits; above, float32 has fewer
digits than the integer. The note says how many values cannot be taken back to the same integer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize, scale_and_zero_point
from qconvert.graph import Graph, Tensor
from qconvert.passes.linear import quantized_bias
from qconvert.plugins import Change, Cost, Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Changes the biases of Conv, ConvTranspose and Gemm with quantized data and weights. A bias that others read too is copied."""
    places: dict[str, list[int]] = {}
    for index, op in enumerate(graph.ops):
        bias = quantized_bias(graph, op)
        if bias is not None and bias.dtype == "int32" and bias.quantization is not None:
            places.setdefault(bias.name, []).append(index)
    if not places:
        return graph, ()
    ops, readers = list(graph.ops), graph.consumers()
    made: dict[str, Tensor] = {}
    unused = graph.names(made)
    values = lost = 0
    for name, indices in places.items():
        shared = len(readers[name]) > len(indices) or name in graph.public
        new = unused.fresh(f"{name}/float32") if shared else name
        made[new] = bias = _real(graph[name], new)
        values += bias.data.size if bias.data is not None else 0
        lost += _lost(graph[name], bias)
        for index in indices:
            ops[index] = replace(ops[index], inputs=(*ops[index].inputs[:2], new))
    words = "all of them stand for the same integers" if not lost else f"{lost} of them round to another integer"
    costs = tuple(Cost(name, None, None) for name in made)
    note = Change(f"{len(made)} biases of {values} values are float32; {words}", costs=costs)
    return graph.evolve(tensors=made.values(), ops=ops), (note,)


def _real(bias: Tensor, name: str) -> Tensor:
    assert bias.data is not None and bias.quantization is not None
    return Tensor(name, "float32", bias.shape, dequantize(bias.data, bias.quantization).astype(np.float32))


def _lost(bias: Tensor, real: Tensor) -> int:
    """How many float32 values lie nearer to another integer's."""
    assert bias.data is not None and bias.quantization is not None and real.data is not None
    scale, _ = scale_and_zero_point(bias.quantization, bias.data.shape)
    return int((np.rint(real.data.astype(np.float64) / scale.astype(np.float64)) != bias.data).sum())
