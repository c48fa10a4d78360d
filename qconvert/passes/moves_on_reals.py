"""moves_on_reals: quantized data of 2 and 4 bits are moved, chosen and compared as the real numbers that they stand for. Exact.

ONNX allows few of its operators on such integers, and onnxruntime (1.31) has kernels for Transpose alone. Nothing is rounded on the way:
what comes out is on the grid that went in, or is quantized as it was.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.kinds import KINDS
from qconvert.passes import remove_dead_code
from qconvert.plugins import Target

__all__ = ["run"]

_FEW = ("int2", "uint2", "int4", "uint4")
#: Those that write functions would have on the integers; others round real values in any case.
_ON_INTEGERS = ("Relu", "Clip", "Resize")
_TAKEN = ("Transpose",)


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Puts each such operator between Dequantize and Quantize; what one gives to the next is not quantized between them."""
    moving = _Moving(graph)
    for op in graph.ops:
        moving.append(op)
    if not moving.count:
        return graph, ()
    changed = graph.evolve(tensors=moving.tensors.values(), ops=moving.ops)
    note = f"{moving.count} operators move, choose or compare data of 2 or 4 bits as real values"
    return remove_dead_code.run(changed, target)[0], (note,)


class _Moving:
    """The operators and tensors that are made."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._real: dict[str, str] = {}  # few bits -> the same values as real numbers
        self.ops: list[Op] = []
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self.count = 0

    def append(self, op: Op) -> None:
        kind = KINDS[op.kind]
        concerned = kind.rule in ("move", "index") or kind.chooses or op.kind in _ON_INTEGERS
        if op.kind in _TAKEN or not concerned or not any(map(self._is_few, (*op.inputs, *op.outputs))):
            self.ops.append(op)
            return
        self.count += 1
        inputs = tuple(self._read(name, op) if self._is_quantized(name) else name for name in op.inputs)
        outputs = tuple(self._new(name) if self._is_quantized(name) else name for name in op.outputs)
        self.ops.append(replace(op, inputs=inputs, outputs=outputs))
        for name, real in zip(op.outputs, outputs, strict=True):
            if name != real:
                self.ops.append(Op("Quantize", (real,), (name,), {}, op.source))
                if kind.rule == "move":  # what is moved is on its grid already
                    self._real[name] = real

    def _is_quantized(self, name: str) -> bool:
        return bool(name) and self._graph[name].is_quantized

    def _is_few(self, name: str) -> bool:
        return self._is_quantized(name) and self._graph[name].dtype in _FEW

    def _read(self, name: str, op: Op) -> str:
        if name not in self._real:
            self._real[name] = self._new(name)
            self.ops.append(Op("Dequantize", (name,), (self._real[name],), {}, op.source))
        return self._real[name]

    def _new(self, name: str) -> str:
        found = self._names.fresh(f"{name}/moved")
        self.tensors[found] = Tensor(found, "float32", self._graph[name].shape)
        return found
