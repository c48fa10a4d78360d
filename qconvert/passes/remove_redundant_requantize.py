"""remove_redundant_requantize: conversions that change no real value disappear, and two in a row become one. Exact.

- Requantize, or Dequantize and Quantize, between equal types and quantizations is dropped. Up to 16 bits float32 gives every integer
  back: the product and the quotient err by less than 2**-23 each, which is far from half a step of 2**16.
- Quantize(Dequantize(x)) onto another grid becomes one Requantize, which has the same meaning.
- A Requantize that only shifts the stored integers (int8 to uint8, zero point + 128) is passed by: who converts its result reads its
  input instead, and who computes its input writes its grid.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.kinds import KINDS
from qconvert.passes.stored_types import SIGNED, UNSIGNED, shifted
from qconvert.plugins import Target

__all__ = ["run"]

_UP_TO_16_BITS = ("int2", "uint2", *UNSIGNED, *SIGNED)


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Walks the graph once, in order; conversions that nobody reads any more go too."""
    shortener = _Shortener(graph)
    ops = shortener.run()
    if ops == list(graph.ops):
        return graph, ()
    before, after = (Counter(op.kind for op in listed) for listed in (graph.ops, ops))
    conversions = (kind for kind, item in KINDS.items() if item.rule == "convert" and before[kind] != after[kind])
    listed = ", ".join(f"{before[kind]} {kind} became {after[kind]}" for kind in conversions)
    return graph.evolve(ops=ops), (listed or "conversions read their values one step earlier",)


class _Shortener:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._producers: dict[str, Op] = {}
        self._readers = Counter(name for op in graph.ops for name in op.inputs)
        self._public = {*graph.inputs, *graph.outputs, *(n for s in graph.signatures for n in (*s.inputs.values(), *s.outputs.values()))}
        self._same: dict[str, str] = {}  # a dropped tensor -> the one with the same stored integers
        self._outward: dict[str, str] = {}  # a tensor -> the graph output that it is instead

    def run(self) -> list[Op]:
        ops: list[Op] = []
        for old in self._graph.ops:
            op = _renamed(old, self._same)
            while KINDS[op.kind].rule == "convert" and (shorter := self._shorter(op)) is not None:
                op = shorter
            if op.kind == "Requantize" and self._dropped(op):
                continue
            ops.append(op)
            self._producers.update({name: op for name in op.outputs if name})
        renamed = [_renamed(op, self._outward, outputs=True) for op in ops]
        return self._without_unread(renamed)

    def _shorter(self, op: Op) -> Op | None:
        """The conversion without the one before it; None if that one is needed."""
        before = self._producers.get(op.inputs[0])
        if before is None or KINDS[before.kind].rule != "convert":
            return None
        if before.kind == "Dequantize":
            is_pair = op.kind == "Quantize" and self._graph[op.inputs[0]].dtype == "float32"
            return replace(op, kind="Requantize", inputs=before.inputs, attributes={}) if is_pair else None
        if before.kind == "Requantize" and op.kind != "Quantize" and self._is_shift(before):
            return replace(op, inputs=before.inputs)
        alone = self._readers[op.inputs[0]] == 1 and op.inputs[0] not in self._public
        if op.kind == "Requantize" and alone and self._is_shift(op):
            return replace(op, kind=before.kind, inputs=before.inputs, attributes=before.attributes)
        return None

    def _is_shift(self, op: Op) -> bool:
        """Whether a Requantize moves integers and zero points by half the range and does nothing else."""
        source, result = self._graph[op.inputs[0]], self._graph[op.outputs[0]]
        if result.dtype != {**UNSIGNED, **SIGNED}.get(source.dtype):
            return False
        return shifted(replace(source, data=None), result.dtype).quantization == result.quantization

    def _dropped(self, op: Op) -> bool:
        """Whether a Requantize changes nothing and its result can go by the other side's name."""
        (name,), (result,) = op.inputs, op.outputs
        if not _equal(self._graph[name], self._graph[result]):
            return False
        if result not in self._public:
            self._same[result] = name
            return True
        if name in self._public or name in self._outward or name not in self._producers:
            return False
        self._outward[name] = result
        return True

    def _without_unread(self, ops: list[Op]) -> list[Op]:
        """Drops conversions that only those which are gone did read."""
        kept: list[Op] = []
        read = set(self._public)
        for op in reversed(ops):
            was_read = self._readers[op.outputs[0]] if op.outputs else 0
            if KINDS[op.kind].rule == "convert" and was_read and op.outputs[0] not in read:
                continue
            kept.append(op)
            read.update(op.inputs)
        return kept[::-1]


def _equal(a: Tensor, b: Tensor) -> bool:
    q = a.quantization
    if q is None or a.dtype != b.dtype or q != b.quantization or a.dtype not in _UP_TO_16_BITS:
        return False
    return bool((q.scale < np.finfo(np.float32).max / 2**17).all())  # else a product could overflow


def _renamed(op: Op, names: dict[str, str], outputs: bool = False) -> Op:
    if names.keys().isdisjoint(op.inputs) and (not outputs or names.keys().isdisjoint(op.outputs)):
        return op
    written = tuple(names.get(name, name) for name in op.outputs) if outputs else op.outputs
    return replace(op, inputs=tuple(names.get(name, name) for name in op.inputs), outputs=written)
