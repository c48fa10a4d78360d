"""gemm_to_conv: a Gemm of quantized rows becomes a convolution over one position, between two Reshapes. Exact: the same sums of products.

For runtimes whose integer kernels are those of convolutions alone. Gemms whose bias is no row, or whose weights are no constants, stay.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Attribute, Graph, Op, Quantization, Tensor
from qconvert.graph.kinds import is_dynamic
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Changes every Gemm with quantized data and constant weights; what else reads these reads them as before."""
    rewriting = _Rewriting(graph)
    for op in graph.ops:
        rewriting.visit(op)
    if not rewriting.count:
        return graph, ()
    changed = graph.evolve(tensors=rewriting.tensors.values(), ops=rewriting.ops)
    return changed, (f"{rewriting.count} Gemm are convolutions over one position",)


class _Rewriting:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._readers = graph.consumers()
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self.ops: list[Op] = []
        self.count = 0

    def visit(self, op: Op) -> None:
        """Takes an operator over, changed if it is such a Gemm."""
        bias = self._row(op)
        if bias is None:
            self.ops.append(op)
            return
        self.count += 1
        data, weights, result = self._graph[op.inputs[0]], self._graph[op.inputs[1]], self._graph[op.outputs[0]]
        assert weights.data is not None and weights.shape is not None
        outputs, inputs = weights.data.shape
        kernel = replace(weights, shape=(outputs, inputs, 1, 1), data=weights.data.reshape(outputs, inputs, 1, 1))
        rows = (data.shape or ("?",))[0]
        spread = self._add(replace(data, shape=(rows, inputs, 1, 1)), f"{data.name}/position")
        found = self._add(replace(result, shape=(rows, outputs, 1, 1)), f"{result.name}/position")
        operands = [spread, self._constant(kernel), *([self._constant(bias)] if bias.name else [])]
        attributes: dict[str, Attribute] = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1}
        attributes |= {"data_format": "channels_first", **{name: op.attributes[name] for name in ("activation",) if name in op.attributes}}
        self.ops += [
            Op("Reshape", (data.name, self._sizes((-1, inputs, 1, 1), data.name)), (spread,), {}, op.source),
            Op("Conv", tuple(operands), (found,), attributes, op.source),
            Op("Reshape", (found, self._sizes((-1, outputs), result.name)), op.outputs, {}, op.source),
        ]

    def _row(self, op: Op) -> Tensor | None:
        """The bias of a Gemm that is changed, as a row; a tensor without a name if it has none; None where the Gemm stays."""
        if op.kind != "Gemm" or is_dynamic(op):
            return None
        data, weights, result = self._graph[op.inputs[0]], self._graph[op.inputs[1]], self._graph[op.outputs[0]]
        if weights.data is None or weights.quantization is None or data.quantization is None or data.rank != 2 or result.rank != 2:
            return None
        if weights.quantization.block_size or weights.quantization.axis not in (None, 0):
            return None
        if len(op.inputs) < 3 or not op.inputs[2]:
            return Tensor("", "int32", ())
        bias, count = self._graph[op.inputs[2]], len(weights.data)
        if bias.data is None or bias.data.size not in (1, count) or bias.data.shape[-1:] not in ((count,), (1,), ()):
            return None
        row = np.broadcast_to(bias.data.reshape(-1), (count,))
        q = bias.quantization
        if q is not None and q.axis is not None:
            if q.scale.size not in (1, count):
                return None
            repeated = [np.broadcast_to(values.reshape(-1), (count,)) for values in (q.scale, q.zero_point)]
            q = Quantization(repeated[0], repeated[1], 0)
        return replace(bias, shape=(count,), data=row, quantization=q)

    def _constant(self, tensor: Tensor) -> str:
        """The name of a constant in its new shape: its own where nothing else reads it."""
        old = self._graph[tensor.name]
        if old.shape == tensor.shape and old.quantization == tensor.quantization:
            return tensor.name
        if len(self._readers[tensor.name]) == 1 and tensor.name not in self._graph.public:
            self.tensors[tensor.name] = tensor
            return tensor.name
        return self._add(tensor, f"{tensor.name}/position")

    def _sizes(self, sizes: tuple[int, ...], near: str) -> str:
        values = np.array(sizes, np.int64)
        return self._add(Tensor("", "int64", values.shape, values), f"{near}/sizes")

    def _add(self, tensor: Tensor, wanted: str) -> str:
        name = self._names.fresh(wanted)
        self.tensors[name] = replace(tensor, name=name)
        return name
