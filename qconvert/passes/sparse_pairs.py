"""sparse_pairs: activations that no product reads as integers lose their quantization; a Clip to its range stays. Not exact.

A Quantize and a Dequantize with nothing but data movement between them become a Clip at the quantization's lowest and highest float
values: what saturated still does, and with it an activation that the quantization implied. The rounding is lost, so results differ
from the source's. Convolutions and products whose results nobody reads as integers give real ones. Quantizations before convolutions
and products stay, and those of graph inputs and outputs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from qconvert.errors import format_count
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.metadata import SHIFTED, read_entries
from qconvert.operators import kind_of
from qconvert.plugins import Change, Cost, PassResult, Target
from qconvert.rewriting import Rewriter


def sparse_pairs(graph: Graph, target: Target | None, pairs: str = "every") -> PassResult:
    """Take the quantizations away where `pairs` is "sparse"."""
    if pairs != "sparse":
        return graph, ()
    removal = _Removal(graph)
    gone = removal.gone
    if not gone:
        return graph, ()
    for op in removal:
        removal.visit(op)
    shifted = {name: point for name, point in read_entries(graph.metadata, SHIFTED).items() if name not in gone}
    metadata = {**graph.metadata, SHIFTED: json.dumps(shifted)} if SHIFTED in graph.metadata else graph.metadata
    costs = tuple(Cost(name, None, 0.5) for name in sorted(gone))
    note = Change(f"{format_count(len(gone), 'activation', 'are')} not quantized any more: no product reads their integers", costs=costs)
    return removal.finish(metadata=metadata), (note,)


def _find_removable(rewriter: Rewriter) -> set[str]:
    """Return the tensors whose integers nobody needs, and whose float values can be had."""
    graph, readers, producers = rewriter.graph, rewriter.readers, rewriter.producers
    found = {
        name
        for name, op in producers.items()
        if _is_plain_quantization(graph[name]) and name not in graph.public and (_gives_floats(op) or kind_of(op).rule == "move")
    }
    while True:
        kept = {name for name in found if not (_is_unneeded(readers[name], found) and _is_real(producers[name], found))}
        if not kept:
            return found
        found -= kept


def _is_plain_quantization(tensor: Tensor) -> bool:
    return tensor.per_tensor is not None and tensor.dtype in ("int8", "uint8", "int16", "uint16")


def _is_unneeded(readers: Sequence[Op], gone: set[str]) -> bool:
    """Whether all readers take float values, or move what goes on as such."""
    return all(kind_of(op).dequantizes or (kind_of(op).rule == "move" and gone.issuperset(op.outputs)) for op in readers)


def _gives_floats(op: Op) -> bool:
    """Whether an operator can give float values in place of integers by a change of its result alone."""
    return kind_of(op).quantizes or kind_of(op).sums_all_weights


def _is_real(op: Op, gone: set[str]) -> bool:
    return _gives_floats(op) or gone.issuperset(kind_of(op).moved_inputs(op))


class _Removal(Rewriter):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.gone = _find_removable(self)
        self._real: dict[str, str] = {}

    def visit(self, op: Op) -> None:
        """Let an operator compute in float in place of the integers that go."""
        inputs = tuple(self._real.get(name, name) for name in op.inputs)
        if kind_of(op).dequantizes and op.inputs[0] in self.gone:
            self.replace(op, op.derive("Identity", inputs, op.outputs))
        elif self.gone.isdisjoint(op.outputs):
            if inputs != op.inputs:
                self.replace(op, replace(op, inputs=inputs))
        elif kind_of(op).rule == "move":
            self.replace(op, replace(op, inputs=inputs, outputs=tuple(self._define_float(name, "real") for name in op.outputs)))
        elif kind_of(op).quantizes:
            self.replace(op, self._clip(op, inputs[0]))
        else:
            real = self.add_float(f"{op.name}/sums", self.graph[op.name])
            self.replace(op, replace(op, inputs=inputs, outputs=(real,)), self._clip(op, real))

    def _define_float(self, name: str, suffix: str) -> str:
        self._real[name] = self.add_float(f"{name}/{suffix}", self.graph[name])
        self.relate(name, self._real[name])
        return self._real[name]

    def _clip(self, op: Op, value: str) -> Op:
        """Return a Clip of the float value to the ends of the quantization that it was rounded to."""
        result = self.graph[op.name]
        q = result.require_quantization()
        ends = [(stored - q.point) * q.step for stored in q.limits(result.dtype)]
        return replace(self.clip(value, ends, result.name, op.source), outputs=(self._define_float(result.name, "clipped"),))
