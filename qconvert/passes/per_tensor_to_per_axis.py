"""per_tensor_to_per_axis: weights and biases with one scale get it once for each output channel. Exact: no value changes.

Some runtimes and file formats take per-axis weights only. Weights are those of Conv, ConvTranspose, Gemm and MatMul.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Graph, Quantization, Tensor
from qconvert.graph.kinds import KINDS
from qconvert.passes.linear import constant_weights, quantized_bias
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Repeats scales and zero points. Constants that something else reads too stay, and so do biases of one value for all channels."""
    changed: dict[str, Tensor] = {}
    for name, axis in constant_weights(graph).items():
        repeated = _repeated(graph[name], axis)
        if repeated is not None:
            changed[name] = repeated
    weights, readers = len(changed), graph.consumers()
    for op in graph.ops:
        bias = quantized_bias(graph, op)
        if bias is None or bias.quantization is None or op.inputs[1] not in changed or not bias.shape or bias.name in graph.public:
            continue
        repeated = _repeated(bias, len(bias.shape) - 1)
        only_biases = all(KINDS[reader.kind].sums_products for reader in readers[bias.name])
        if (
            repeated is not None
            and only_biases
            and bias.data is not None
            and _channels(graph, op.inputs[1]) == bias.shape[-1] == bias.data.size
        ):
            changed[bias.name] = repeated
    if not changed:
        return graph, ()
    return graph.evolve(tensors=changed.values()), (
        f"{weights} weights and {len(changed) - weights} biases have a scale for each output channel",
    )


def _channels(graph: Graph, weights: str) -> int:
    """Output channels of the weights of a Conv, ConvTranspose or Gemm."""
    data = graph.constant(weights)
    return 0 if data is None else len(data)


def _repeated(tensor: Tensor, axis: int) -> Tensor | None:
    """The tensor with its one scale for each index along `axis`; None if it has others already."""
    q = tensor.quantization
    assert q is not None and tensor.data is not None
    size = tensor.data.shape[axis]
    if q.axis is not None or size == 0:
        return None
    return replace(tensor, quantization=Quantization(np.repeat(q.scale, size), np.repeat(q.zero_point, size), axis))
