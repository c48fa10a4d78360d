"""Conversions: Quantize, Dequantize and Requantize, alone and one after the other.

remove_redundant_requantize: conversions that change no float value disappear, and two in a row become one. Exact.

- Requantize, or Dequantize and Quantize, between equal types and quantizations is dropped. Up to 16 bits float32 gives every integer
  back: the product and the quotient err by less than 2**-23 each, which is far from half a step of 2**16.
- Quantize(Dequantize(x)) to another quantization becomes one Requantize, which has the same meaning; the two stay where a pass of
  the target ensures one rounding (requantize_in_float) and its integer kernel would round otherwise.
- A Requantize that only shifts the stored integers (int8 to uint8, zero point + 128) is passed by: who converts its result reads its
  input instead, and who computes its input writes its quantization.

requantize_in_float: a Requantize that the target's integer kernel would round otherwise becomes a Dequantize and a Quantize.

XNNPACK's QUANTIZE from 8 to 8 bits multiplies by 8 fractional bits, so that 4% of its integers are off by one, and deep networks that bring
the data of each Concat to one scale end in other results. By float32 the exact value is rounded once, in twice the time (20 and 10 µs for
200,000 elements; 0.7% of a ShuffleNet's). What a .tflite file has as QUANTIZE stays. With numerics "fast" nothing is done.

per_axis_in_float: activations with scales along an axis are quantized and dequantized by float operators around integers of scale 1.

NNCF quantizes the data of depthwise convolutions for each channel; TFLite has one scale for an activation. round(x / scale) + zero_point is
saturated by a Quantize of scale 1, and the stored integers stay: (integer - zero_point) * scale follows a Dequantize of scale 1.

sparse_pairs: activations that no product reads as integers lose their quantization; a Clip to its range stays. Not exact.

A Quantize and a Dequantize with nothing but data movement between them become a Clip at the quantization's lowest and highest float
values: what saturated still does, and with it an activation that the quantization implied. The rounding is lost, so results differ
from the source's. Convolutions and products whose results nobody reads as integers give real ones. Quantizations before convolutions
and products stay, and those of graph inputs and outputs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.errors import format_count
from qconvert.graph import Graph, Op, Tensor, count_kinds
from qconvert.graph.metadata import SHIFTED, read_entries
from qconvert.kernels.proofs import integers_for_all
from qconvert.operators import KINDS, kind_of
from qconvert.passes.stored_types import SIGNED, UNSIGNED, shift_to_dtype
from qconvert.plugins import Change, Cost, PassResult, Target
from qconvert.rewriting import Rewriter

_UP_TO_16_BITS = ("int2", "uint2", *UNSIGNED, *SIGNED)


def remove_redundant_requantize(graph: Graph, target: Target | None) -> PassResult:
    """Walk over the graph once, in order; conversions that nobody reads any more go too."""
    shortener = _Shortener(graph, target if target is not None and target.ensures("one rounding") else None)
    for op in shortener:
        if kind_of(op).rule == "convert":
            shortener.shorten(op)
    for name, output in shortener.outward.items():
        shortener.rename(name, output)
    if not shortener.is_changed:
        return graph, ()
    changed = shortener.finish(prune=lambda op: kind_of(op).rule == "convert" and op.name in shortener.readers)
    before, after = count_kinds(graph), count_kinds(changed)
    conversions = (kind for kind, item in KINDS.items() if item.rule == "convert" and before[kind] != after[kind])
    listed = ", ".join(f"{before[kind]} {kind} became {after[kind]}" for kind in conversions)
    return changed, (listed or "conversions read their values one step earlier",)


class _Shortener(Rewriter):
    """What becomes of conversions.

    Args:
        graph: whose conversions these are.
        coarse: the target, if a pass of its ensures one rounding.

    Attributes:
        outward: tensors, and the graph outputs that they are instead.
    """

    def __init__(self, graph: Graph, coarse: Target | None) -> None:
        super().__init__(graph)
        self._coarse = coarse
        self._producers = dict(self.producers)  # of conversions: what they became
        self.outward: dict[str, str] = {}

    def shorten(self, old: Op) -> None:
        """Let a conversion read its values as early as it can, or take it out."""
        op = replace(old, inputs=tuple(self.resolve(name) for name in old.inputs))
        while (shorter := self._merge_conversions(op)) is not None:
            op = shorter
        if kind_of(op).requantizes and self._is_dropped(op):
            self.remove(old)
            del self._producers[op.name]
        elif op != old:
            self.replace(old, op)
            self._producers[op.name] = op

    def _merge_conversions(self, op: Op) -> Op | None:
        """Return the conversion without the one before it; None if that one is needed."""
        before = self._producers.get(op.inputs[0])
        if before is None or kind_of(before).rule != "convert":
            return None
        kind = kind_of(op)
        if kind_of(before).dequantizes:
            if not kind.quantizes or self.graph[op.inputs[0]].dtype != "float32":
                return None
            merged = op.derive("Requantize", before.inputs, op.outputs)
            return None if self._coarse is not None and rounds_otherwise(self.graph, merged, self._coarse) else merged
        if kind_of(before).requantizes and not kind.quantizes and self._is_shift(before):
            return replace(op, inputs=before.inputs)
        if kind.requantizes and self.is_read_once(op.inputs[0]) and self._is_shift(op):
            return replace(before, outputs=op.outputs, source=op.source)
        return None

    def _is_shift(self, op: Op) -> bool:
        """Whether a Requantize shifts integers and zero points by half the range and does nothing else."""
        source, result = self.graph[op.inputs[0]], self.graph[op.name]
        if result.dtype != {**UNSIGNED, **SIGNED}.get(source.dtype):
            return False
        return shift_to_dtype(replace(source, data=None), result.dtype).quantization == result.quantization

    def _is_dropped(self, op: Op) -> bool:
        """Return whether a Requantize changes nothing and its result can go by the other side's name, which is noted."""
        (name,), (result,) = op.inputs, op.outputs
        if not _is_same_storage(self.graph[name], self.graph[result]):
            return False
        if result not in self.graph.public:
            self.forward(result, name)
            return True
        if name in self.graph.public or name in self.outward or name not in self._producers:
            return False
        self.outward[name] = result
        return True


def _is_same_storage(a: Tensor, b: Tensor) -> bool:
    q = a.quantization
    if q is None or a.dtype != b.dtype or q != b.quantization or a.dtype not in _UP_TO_16_BITS:
        return False
    return bool((q.scale < np.finfo(np.float32).max / 2**17).all())  # else a product could overflow


def requantize_in_float(graph: Graph, target: Target | None, *, numerics: str = "exact") -> PassResult:
    """Replace each Requantize of 8 bits that the target rounds otherwise for one code at least."""
    if target is None or numerics == "fast" or graph.is_from("tflite"):
        return graph, ()
    rewriter = Rewriter(graph)
    for op in rewriter:
        if kind_of(op).requantizes and rounds_otherwise(graph, op, target):
            real = rewriter.dequantize(op.inputs[0], f"{op.name}/real", op.source)
            rewriter.replace(op, op.derive("Quantize", (real,), op.outputs))
    return rewriter.finish_with(lambda count: f"requantizations by float values, because {target.name}'s integer kernel is coarse: {count}")


def rounds_otherwise(graph: Graph, op: Op, target: Target) -> bool:
    """Whether the target's integer kernel gives another integer than the exact value, rounded once, for a code of 8 bits."""
    own, exact = (integers_for_all(graph, op, row) for row in (target.kernels.of(graph, op), None))
    return own is not None and exact is not None and not np.array_equal(own, exact)


def per_axis_in_float(graph: Graph, target: Target | None) -> PassResult:
    """Rewrite each Quantize along an axis whose result Dequantize operators alone read, and these."""
    rewriter = Rewriter(graph)
    integers: dict[str, str] = {}
    for op in rewriter.of_kind("Quantize", "Dequantize"):
        if op.kind == "Quantize" and _is_read_in_float(rewriter, op):
            integers[op.name] = _quantize_along_axis(rewriter, op)
        elif op.inputs[0] in integers:
            _dequantize_along_axis(rewriter, op, integers[op.inputs[0]])
    return rewriter.finish_with(lambda count: f"activations with scales along an axis by float operators: {count}", len(integers))


def _is_read_in_float(rewriter: Rewriter, op: Op) -> bool:
    graph = rewriter.graph
    data, result = graph[op.inputs[0]], graph[op.name]
    quantization = result.quantization
    if quantization is None or quantization.axis is None or quantization.block_size or result.rank is None or data.dtype != "float32":
        return False
    readers = rewriter.readers.get(op.name, ())
    return op.name not in graph.outputs and all(item.kind == "Dequantize" and graph[item.name].dtype == "float32" for item in readers)


def _quantize_along_axis(rewriter: Rewriter, op: Op) -> str:
    """Put float operators and a Quantize of scale 1 in the place of a Quantize; return the name of the same integers."""
    result = rewriter[op.name]
    scale, zero_point = _factors_along_axis(rewriter, result)
    steps = rewriter.compute_plain("Div", (op.inputs[0], scale), result, "float32", op.source)
    if zero_point:
        steps = rewriter.compute_plain("Round", (steps,), result, "float32", op.source)
        steps = rewriter.compute_plain("Add", (steps, zero_point), result, "float32", op.source)
    one = replace(result.require_quantization(), scale=np.ones(1, np.float32), zero_point=np.zeros(1, np.int64), axis=None)
    found = rewriter.add(f"{result.name}/integers", result, quantization=one)
    rewriter.replace(op, op.derive("Quantize", (steps,), (found,)))
    return found


def _dequantize_along_axis(rewriter: Rewriter, op: Op, integers: str) -> None:
    """Put a Dequantize of scale 1 and float operators in the place of a Dequantize."""
    result = rewriter[op.name]
    scale, zero_point = _factors_along_axis(rewriter, rewriter[op.inputs[0]])
    steps = rewriter.dequantize(integers, f"{result.name}/steps", op.source)
    if zero_point:
        steps = rewriter.compute_plain("Sub", (steps, zero_point), result, "float32", op.source)
    rewriter.replace(op, op.derive("Mul", (steps, scale), op.outputs))


def _factors_along_axis(rewriter: Rewriter, tensor: Tensor) -> tuple[str, str]:
    """Return the names of scales and zero points as constants that broadcast along the axis; "" where all zero points are 0."""
    quantization = tensor.require_quantization()
    shape = [1] * (tensor.rank or 0)
    shape[quantization.axis or 0] = -1
    scale, zero_point = (np.asarray(values, np.float32).reshape(shape) for values in (quantization.scale, quantization.zero_point))
    points = rewriter.shared_constant(f"{tensor.name}/zero_point", zero_point) if zero_point.any() else ""
    return rewriter.shared_constant(f"{tensor.name}/scale", scale), points


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
        if graph[name].per_tensor is not None
        and graph[name].dtype in ("int8", "uint8", "int16", "uint16")
        and name not in graph.public
        and (_gives_floats(op) or kind_of(op).rule == "move")
    }
    while True:
        kept = {name for name in found if not (_is_unneeded(readers[name], found) and _is_real(producers[name], found))}
        if not kept:
            return found
        found -= kept


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
