"""Encodings that follow from others: for programs that choose a scale of their own wherever a file states none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qconvert.encodings import Encoding, Encodings, Place, QParams
from qconvert.graph import Graph, Op
from qconvert.kernels.products import round_bias
from qconvert.operators import kind_of


def add_implied_encodings(graph: Graph, encodings: Encodings) -> Encodings:
    """Return the encodings and those that follow from them; no value of the graph changes.

    Data movement has one quantization on both sides. What a Relu or a Clip alone reads, and the ends of its range, have that of its result:
    rounding keeps order, so it gives the same integers before and after. A constant bias has input scale * weight scale, if its integers
    are of 32 bits.

    Args:
        graph: in float.
        encodings: by the names of its tensors; entries of operators' inputs and outputs imply nothing.
    """
    stated = {place.name for place in encodings.entries}
    found = {place.name: entry.qparams for place, entry in encodings.entries.items() if place.role == "tensor" and entry.qparams}
    readers, known = graph.consumers(), len(found)
    while True:
        for op in graph.ops:
            for name, quantization in _implied_by(graph, op, found):
                is_seen_here_alone = name in op.outputs or (name not in graph.public and len(readers[name]) == 1)
                if name not in stated | found.keys() and graph[name].dtype == "float32" and is_seen_here_alone:
                    found[name] = quantization
        if len(found) == known:
            break
        known = len(found)
    return encodings.evolve({**encodings.entries, **{Place(name): Encoding(q) for name, q in found.items() if name not in stated}})


def _implied_by(graph: Graph, op: Op, found: dict[str, QParams]) -> Iterator[tuple[str, QParams]]:
    """Yield tensors of an operator with the quantization that its other tensors imply: one scale, as channels may change place."""
    kind = kind_of(op)
    result = found.get(op.name)
    if result is not None and not result.quantization.is_per_tensor:
        result = None
    if kind.clips and result is not None:
        yield from ((name, result) for name in op.inputs if name)
    if kind.rule == "move":
        data = [found.get(name) for name in kind.data(op)]
        if result is not None and len(op.outputs) == 1:
            yield from ((name, result) for name in kind.data(op) if not graph[name].is_constant)
        fillers = [graph[name].data for name in kind.moved_inputs(op) if name not in kind.data(op)]  # 0 has an integer, others may not
        is_known = all(item == data[0] for item in data) and all(filler is not None and not filler.any() for filler in fillers)
        if data and data[0] is not None and data[0].quantization.is_per_tensor and is_known:
            yield from ((name, data[0]) for name in kind.results_of(op) if name)
    if kind.sums_products and op.has(2):
        first, second = found.get(op.inputs[0]), found.get(op.inputs[1])
        if first is not None and second is not None:
            weights = second.quantization  # whose scales have no axis where a file states none
            weights = replace(weights, axis=0) if weights.axis is None and weights.scale.size > 1 else weights
            bias = round_bias(graph[op.inputs[2]], first.quantization, weights)
            if bias is not None and bias.quantization is not None:
                yield bias.name, QParams("int32", bias.quantization)
