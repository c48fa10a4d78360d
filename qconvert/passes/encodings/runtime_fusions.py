"""What runtimes do before they choose scales: constants are computed, batch normalizations and activations are part of their layers."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.encodings import BATCH_NORM, FOLDED, FUSED, Encodings, Place
from qconvert.graph import Graph, Op
from qconvert.operators import kind_of
from qconvert.passes import compute_constants, fold_batch_norm

__all__ = ["drop_unrounded", "normalize"]

#: What runtimes compute together with the layer before it, and round nothing between.


def drop_unrounded(graph: Graph, encodings: Encodings) -> tuple[Encodings, int]:
    """Return the encodings without those of tensors that the runtime never has, where they say so, and how many these are.

    A calibrator sees the result of a layer, of its normalization and of its Relu; the runtime computes them in one and rounds the last.
    """
    if encodings.metadata.get(BATCH_NORM) != FUSED:
        return encodings, 0
    readers, gone = graph.consumers(), set[Place]()
    for op in graph.ops:
        if not (kind_of(op).sums_products or op.kind == "Add"):
            continue
        name, before = op.outputs[0], list[Place]()
        while (following := _fused_after(name, graph, readers)) is not None:
            before, name = [*before, Place(name)], following.outputs[0]
            if Place(name) in encodings.entries:
                gone.update(before)
    gone &= encodings.entries.keys()
    kept = {place: found for place, found in encodings.entries.items() if place not in gone}
    return (encodings.evolve(kept) if gone else encodings), len(gone)


def _fused_after(name: str, graph: Graph, readers: Mapping[str, list[Op]]) -> Op | None:
    """The one operator after a result that is computed together with it."""
    found = readers.get(name, [])
    if (
        name in graph.public
        or len(found) != 1
        or not (found[0].kind == "BatchNormalization" or kind_of(found[0]).clips)
        or found[0].inputs[0] != name
    ):
        return None
    return found[0]


def normalize(graph: Graph, encodings: Encodings) -> tuple[Graph, Mapping[str, str]]:
    """Return the graph with constants folded and batch normalizations folded into their layers.

    Tensors with entries become constants if they depend on constants alone. Normalizations are folded if entries name operators, as
    runtimes do, or if the encodings say so. An entry of the tensor between a layer and its normalization prevents this: the tool
    observed both separately.

    Returns:
        the graph, and the result of each layer that is gone -> what the layer computes now.
    """
    graph = compute_constants.fold_float_constants(graph, _find_encoded_tensors(graph, encodings))
    producers = graph.producers()
    norms = [op for op in graph.ops if op.kind == "BatchNormalization"]
    between = {norm.inputs[0]: norm.outputs[0] for norm in norms if _is_layer(producers.get(norm.inputs[0]))}
    named = {place.name for place in encodings.entries if place.role != "tensor"}
    if (
        not between
        or not (named or encodings.metadata.get(BATCH_NORM) in (FOLDED, FUSED))
        or any(place.role == "tensor" and place.name in between for place in encodings.entries)
    ):
        return graph, {}
    folded, _ = fold_batch_norm.run(graph, None)
    return folded, {before: after for before, after in between.items() if before not in folded.tensors and after in folded.tensors}


def _find_encoded_tensors(graph: Graph, encodings: Encodings) -> set[str]:
    """The tensors that entries name, and the biases of layers, which become integers; where some name operators, also weights."""
    found = {place.name for place in encodings.entries if place.role == "tensor"}
    first = 1 if any(place.role == "input" for place in encodings.entries) else 2
    return found.union(name for op in graph.ops if _is_layer(op) for name in op.inputs[first:])


def _is_layer(op: Op | None) -> bool:
    return op is not None and kind_of(op).has_weights
