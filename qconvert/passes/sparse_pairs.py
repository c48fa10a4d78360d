"""sparse_pairs: activations that no product reads as integers lose their grid; a Clip to its range stays. Not exact.

A Quantize and a Dequantize with nothing but moves between them become a Clip at the real values of the grid's two ends: what saturated
still does, and with it an activation that the grid implied. What is lost is the rounding, so results differ from the source's.
Convolutions and products whose results nobody reads as integers give real ones. Grids in front of convolutions and products stay, and those
of graph inputs and outputs.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.kinds import KINDS
from qconvert.graph.metadata import SHIFTED
from qconvert.plugins import Change, Cost, Target

__all__ = ["run"]

#: What may give real values in place of integers by a change of its result alone.
_REAL = ("Quantize", "Conv", "Gemm", "MatMul")


def run(graph: Graph, target: Target | None, pairs: str = "every") -> tuple[Graph, tuple[Change, ...]]:
    """Takes the grids away where `pairs` is "sparse"."""
    gone = _gone(graph) if pairs == "sparse" else set()
    if not gone:
        return graph, ()
    rewriting = _Rewriting(graph, gone)
    for op in graph.ops:
        rewriting.visit(op)
    shifted = {name: point for name, point in json.loads(graph.metadata.get(SHIFTED, "{}")).items() if name not in gone}
    metadata = {**graph.metadata, SHIFTED: json.dumps(shifted)} if SHIFTED in graph.metadata else graph.metadata
    changed = graph.evolve(tensors=rewriting.tensors.values(), ops=rewriting.ops, metadata=metadata)
    costs = tuple(Cost(name, None, 0.5) for name in sorted(gone))
    return changed, (Change(f"{len(gone)} activations are not rounded any more: no product reads their integers", costs=costs),)


def _gone(graph: Graph) -> set[str]:
    """The tensors whose integers nobody needs, and whose real values can be had."""
    readers, producers = graph.consumers(), graph.producers()
    found = {
        name
        for name, op in producers.items()
        if _is_plain_grid(graph[name]) and name not in graph.public and (op.kind in _REAL or KINDS[op.kind].rule == "move")
    }
    while True:
        kept = {name for name in found if not (_is_unneeded(readers.get(name, []), found) and _is_real(producers[name], found))}
        if not kept:
            return found
        found -= kept


def _is_plain_grid(tensor: Tensor) -> bool:
    return tensor.quantization is not None and tensor.quantization.is_per_tensor and tensor.dtype in ("int8", "uint8", "int16", "uint16")


def _is_unneeded(readers: list[Op], gone: set[str]) -> bool:
    """Whether all readers take real values, or move what goes on as such."""
    return all(op.kind == "Dequantize" or (KINDS[op.kind].rule == "move" and gone.issuperset(op.outputs)) for op in readers)


def _is_real(op: Op, gone: set[str]) -> bool:
    return op.kind in _REAL or gone.issuperset(KINDS[op.kind].moved(op))


class _Rewriting:
    def __init__(self, graph: Graph, gone: set[str]) -> None:
        self._graph, self._gone = graph, gone
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self._real: dict[str, str] = {}
        self.ops: list[Op] = []

    def visit(self, op: Op) -> None:
        """Takes an operator over, with real values in place of the integers that go."""
        if op.kind == "Dequantize" and op.inputs[0] in self._gone:
            self.ops.append(Op("Identity", (self._real[op.inputs[0]],), op.outputs, {}, op.source))
            return
        inputs = tuple(self._real.get(name, name) for name in op.inputs)
        if self._gone.isdisjoint(op.outputs):
            self.ops.append(replace(op, inputs=inputs))
        elif KINDS[op.kind].rule == "move":
            self.ops.append(replace(op, inputs=inputs, outputs=tuple(self._new(name, "real") for name in op.outputs)))
        elif op.kind == "Quantize":
            self._clip(op, inputs[0])
        else:
            real = self._named(f"{op.outputs[0]}/sums", op.outputs[0])
            self.ops.append(replace(op, inputs=inputs, outputs=(real,)))
            self._clip(op, real)

    def _new(self, name: str, suffix: str) -> str:
        self._real[name] = self._named(f"{name}/{suffix}", name)
        return self._real[name]

    def _named(self, wanted: str, like: str) -> str:
        name = self._names.fresh(wanted)
        self.tensors[name] = Tensor(name, "float32", self._graph[like].shape)
        return name

    def _clip(self, op: Op, value: str) -> None:
        """The real value between the ends of the grid that it was rounded to."""
        result = self._graph[op.outputs[0]]
        assert result.quantization is not None
        scale, point = float(result.quantization.scale[0]), int(result.quantization.zero_point[0])
        ends = []
        for word, stored in zip(("lowest", "highest"), result.quantization.limits(result.dtype), strict=True):
            ends.append(self._names.fresh(f"{result.name}/{word}"))
            self.tensors[ends[-1]] = Tensor(ends[-1], "float32", (), np.array((stored - point) * scale, np.float32))
        self.ops.append(Op("Clip", (value, *ends), (self._new(result.name, "clipped"),), {}, op.source))
