"""The float network that MNN's converter reads, and next to it the quantizations of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qconvert.encodings import Encodings, Place, extract_encodings
from qconvert.formats.mnn.roundings import is_rounding
from qconvert.graph import Graph, Op

__all__ = ["rounded_names", "split_encodings"]


def split_encodings(graph: Graph, exact: bool = True) -> tuple[Graph, Encodings]:
    """The graph in float, and the quantizations that its tensors had, with their integers.

    MNN's converter drops an Identity, and one of its names. So the result has an Identity only between two visible names, and where it
    rounds to another quantization (roundings.py writes these).

    Args:
        graph: the quantized graph.
        exact: whether such an Identity rounds. Otherwise a requantized tensor has the quantization on which it was computed, and the name
            of the output that it becomes.

    Raises:
        UnsupportedError: the graph has a Reinterpret of stored integers, which has no form in float.
    """
    network, encodings = extract_encodings(graph)
    readers = network.consumers()
    dropped = [op for op in network.ops if op.kind == "Identity" and not (exact and is_rounding(network, op, encodings, readers))]
    names = _merge_names(network, dropped)
    ops = [_rename_tensors(op, names) for op in network.ops if op.kind != "Identity" or _is_kept_identity(op, names)]
    computed = {name: place for name in names if (place := Place(name)) in encodings.entries and names[name] in network.public}
    entries = {place: found for place, found in encodings.entries.items() if place.name not in names}
    entries.update({Place(names[name]): encodings[place] for name, place in computed.items()})
    tensors = [replace(network[name], name=new) for name, new in names.items() if new in network.public]
    return network.evolve(tensors=tensors, ops=ops), encodings.evolve(entries)


def rounded_names(graph: Graph, network: Graph) -> dict[str, str]:
    """Float value -> result of the only Quantize that reads it, if the float network has no tensor of that name."""
    readers = graph.consumers()
    found = {op.inputs[0]: op.outputs[0] for op in graph.ops if op.kind == "Quantize" and len(readers[op.inputs[0]]) == 1}
    return {name: after for name, after in found.items() if after not in network.tensors}


def _merge_names(network: Graph, dropped: Sequence[Op]) -> dict[str, str]:
    """The tensors on both sides of an Identity that get the name of the other."""
    seen = {*network.inputs, *network.public, *(tensor.name for tensor in network.constants())}
    found: dict[str, str] = {}
    for op in dropped:
        source, result = found.get(op.inputs[0], op.inputs[0]), op.outputs[0]
        if result not in network.public:
            found[result] = source
        elif source not in seen:
            found.update({name: result for name, known in found.items() if known == source})
            found[source] = result
            seen.add(result)
    return found


def _is_kept_identity(op: Op, names: Mapping[str, str]) -> bool:
    source, result = op.inputs[0], op.outputs[0]
    return names.get(source, source) != names.get(result, result)


def _rename_tensors(op: Op, names: Mapping[str, str]) -> Op:
    sides = (tuple(names.get(name, name) for name in side) for side in (op.inputs, op.outputs))
    inputs, outputs = sides
    return replace(op, inputs=inputs, outputs=outputs)
