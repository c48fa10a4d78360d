"""per_tensor_to_per_axis: weights and biases with one scale get it once for each output channel. Exact: no value changes.

Some runtimes and file formats take per-axis weights only. Weights are those of Conv, ConvTranspose, Gemm and MatMul.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.operators import kind_of
from qconvert.passes.linear import weight_uses
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.requantize import quantized_bias


def run(graph: Graph, target: Target | None) -> PassResult:
    """Repeat scales and zero points. Constants that something else reads too stay, and so do biases of one value for all channels."""
    rewriter = Rewriter(graph)
    weights, biases = set[str](), set[str]()
    for use in weight_uses(graph):
        repeated = _repeat_scale(graph[use.name], use.axis) if use.alone else None
        if repeated is not None:
            weights.add(rewriter.define(repeated))
    for op in rewriter:
        bias = quantized_bias(graph, op)
        if bias is None or bias.quantization is None or op.inputs[1] not in weights or not _is_for_channels(rewriter, op, bias):
            continue
        repeated = _repeat_scale(bias, len(bias.shape or ()) - 1)
        if repeated is not None:
            biases.add(rewriter.define(repeated))
    if not weights:
        return graph, ()
    return rewriter.finish(), (f"{len(weights)} weights and {len(biases)} biases have a scale for each output channel",)


def _is_for_channels(rewriter: Rewriter, op: Op, bias: Tensor) -> bool:
    """Whether a bias has one value for each output channel of weights O,…, and is nothing but a bias."""
    if not bias.shape or bias.data is None or bias.name in rewriter.graph.public:
        return False
    weights = rewriter.graph.constant(op.inputs[1])
    channels = 0 if weights is None else len(weights)
    only_biases = all(kind_of(reader).sums_products for reader in rewriter.readers[bias.name])
    return only_biases and channels == bias.shape[-1] == bias.data.size


def _repeat_scale(tensor: Tensor, axis: int) -> Tensor | None:
    """Return the tensor with its one scale for each index along `axis`; None if it has others already."""
    q, size = tensor.require_quantization(), (tensor.static_shape or ())[axis]
    if q.axis is not None or size == 0:
        return None
    return replace(tensor, quantization=Quantization(np.repeat(q.scale, size), np.repeat(q.zero_point, size), axis))
