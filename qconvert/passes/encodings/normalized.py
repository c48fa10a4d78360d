"""Batch normalizations behind layers, which runtimes fold into the weights before they choose scales."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.encodings import Encodings
from qconvert.graph import Graph, Op
from qconvert.graph.kinds import KINDS
from qconvert.passes import fold_batch_norm

__all__ = ["BATCH_NORM", "FOLDED", "normalized"]

#: In the metadata of encodings: whether they were made behind folding batch normalizations.
BATCH_NORM, FOLDED = "batch_norm", "folded"


def normalized(graph: Graph, encodings: Encodings) -> tuple[Graph, Mapping[str, str]]:
    """The graph with its batch normalizations folded, where entries name operators, as runtimes do, or the encodings say that they were
    made so, and those that are folded.

    Where an entry is of the tensor between a layer and its normalization nothing is folded: somebody saw both apart.

    Returns:
        the graph, and the result of each layer that is gone -> what the layer computes now.
    """
    producers = graph.producers()
    norms = [op for op in graph.ops if op.kind == "BatchNormalization"]
    between = {norm.inputs[0]: norm.outputs[0] for norm in norms if _is_layer(producers.get(norm.inputs[0]))}
    named = {place.name for place in encodings.entries if place.role != "tensor"}
    if (
        not between
        or not (named or encodings.metadata.get(BATCH_NORM) == FOLDED)
        or any(place.role == "tensor" and place.name in between for place in encodings.entries)
    ):
        return graph, {}
    folded, _ = fold_batch_norm.run(graph, None)
    return folded, {before: after for before, after in between.items() if before not in folded.tensors and after in folded.tensors}


def _is_layer(op: Op | None) -> bool:
    return op is not None and KINDS[op.kind].has_weights
