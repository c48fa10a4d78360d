"""spell_weights: integer weights of operators on real values are spelled as Cast, Sub and Mul, which onnxruntime computes once.

onnxruntime folds operators on constants when it loads a model, but leaves every DequantizeLinear alone for the sake of QDQ patterns
(constant_folding.cc), and so computes all weights anew with each run: five times the latency of a MobileNet v2 (measured). The
file keeps the integers and the scales; the real values are the same, (q - zero point) * scale in one rounding. absorb_quantization reads
the three operators as the Dequantize that they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization, Tensor, numpy_dtype
from qconvert.plugins import Target

__all__ = ["SPELLED_TYPES", "run"]

#: Types whose differences float32 holds exactly. Blocks of 4 bits stay: onnxruntime has kernels for them as they are.
SPELLED_TYPES = ("int8", "uint8", "int16", "uint16")


def run(graph: Graph, target: Target | None, *, form: str = "") -> tuple[Graph, tuple[str, ...]]:
    """Spells each Dequantize of a constant that nothing else reads; QONNX has a node of its own for it."""
    if form == "qonnx":
        return graph, ()
    consumers = graph.consumers()
    spelling = _Spelling(graph)
    ops: list[Op] = []
    for op in graph.ops:
        ops += spelling.spelled(op) if _is_spelled(graph, op, consumers) else [op]
    if not spelling.count:
        return graph, ()
    noun = "constant of integers is" if spelling.count == 1 else "constants of integers are"
    note = f"{spelling.count} {noun} made real by Cast and Mul, once, when onnxruntime loads the file"
    return graph.evolve(tensors=spelling.tensors.values(), ops=ops), (note,)


def _is_spelled(graph: Graph, op: Op, consumers: Mapping[str, Sequence[Op]]) -> bool:
    if op.kind != "Dequantize":
        return False
    tensor, result = graph[op.inputs[0]], graph[op.outputs[0]]
    q = tensor.quantization
    if not tensor.is_constant or tensor.dtype not in SPELLED_TYPES or result.dtype != "float32" or q is None or q.block_size:
        return False
    if any(reader.kind == "ConvTranspose" for reader in consumers.get(result.name, ())):
        return False  # ONNX has its weights in another order, and the integers are turned, not what is computed of them
    return len(consumers[tensor.name]) == 1 and tensor.name not in graph.public and result.name not in graph.public


class _Spelling:
    """The tensors that are new or have lost their grid, and how many operators were spelled."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self.count = 0

    def spelled(self, op: Op) -> list[Op]:
        """Cast, Sub if there are zero points, and Mul."""
        weights, result = self._graph[op.inputs[0]], self._graph[op.outputs[0]]
        grid = weights.quantization
        assert grid is not None
        self.count += 1
        self.tensors[weights.name] = replace(weights, quantization=None)
        value = self._real(result, "cast")
        ops = [Op("Cast", (weights.name,), (value,), {"to": result.dtype}, op.source)]
        if not grid.is_symmetric:
            shifted = self._real(result, "shifted")
            ops.append(Op("Sub", (value, self._constant(weights, grid, grid.zero_point, "zero_point")), (shifted,), {}, op.source))
            value = shifted
        return [*ops, Op("Mul", (value, self._constant(weights, grid, grid.scale, "scale")), op.outputs, {}, op.source)]

    def _real(self, result: Tensor, suffix: str) -> str:
        name = self._names.fresh(f"{result.name}/{suffix}")
        self.tensors[name] = replace(result, name=name)
        return name

    def _constant(self, weights: Tensor, grid: Quantization, values: Array, suffix: str) -> str:
        """Scales or zero points of type float32, along the weights' axis."""
        rank = weights.rank or 0
        shape = [] if grid.axis is None else [-1 if axis == grid.axis else 1 for axis in range(rank)]
        data = np.asarray(values).astype(numpy_dtype("float32")).reshape(shape)
        name = self._names.fresh(f"{weights.name}/{suffix}")
        self.tensors[name] = Tensor(name, "float32", data.shape, data=data)
        return name
