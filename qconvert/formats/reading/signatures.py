"""Named entry points, which formats that have none of their own note in the metadata and find again."""

from __future__ import annotations

import json
from dataclasses import replace

from qconvert.errors import InvalidModelError
from qconvert.graph import Graph, Signature
from qconvert.graph.metadata import SOURCE_SIGNATURES

__all__ = ["noted_signatures", "with_signatures"]


def noted_signatures(graph: Graph) -> dict[str, str]:
    """The metadata entry for the entry points of a graph; nothing where it has none."""
    found = {s.key: {"inputs": dict(s.inputs), "outputs": dict(s.outputs)} for s in graph.signatures if not s.function}
    return {SOURCE_SIGNATURES: json.dumps(found)} if found else {}


def with_signatures(graph: Graph) -> Graph:
    """The graph with the entry points in its metadata; a note whose values the model no longer has is left out.

    Raises:
        InvalidModelError: the metadata entry is no map.
    """
    text = graph.metadata.get(SOURCE_SIGNATURES)
    if text is None:
        return graph
    try:
        noted = {str(key): [dict(found[side]) for side in ("inputs", "outputs")] for key, found in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise InvalidModelError(
            f"the metadata entry {SOURCE_SIGNATURES} is not a map of names to inputs and outputs", rule="malformed-metadata"
        ) from error
    signatures = tuple(
        Signature(key, inputs, outputs)
        for key, (inputs, outputs) in noted.items()
        if all(name in graph.inputs for name in inputs.values()) and all(name in graph.outputs for name in outputs.values())
    )
    metadata = {key: value for key, value in graph.metadata.items() if key != SOURCE_SIGNATURES}
    return replace(graph, signatures=signatures, metadata=metadata)
