"""What qconvert wrote beside a torch.export program: names of the source, which PyTorch does not keep, and the graph's metadata.

The notes give names and nothing else that a run would show: a false note makes a wrong name, never another function.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.reading.signatures import with_signatures
from qconvert.formats.torch.archive import Archive
from qconvert.graph import Graph, Op, Shape, Tensor
from qconvert.graph.metadata import FUSED_PADDING, SOURCE_FORMAT

__all__ = ["NOTES", "with_notes"]

#: The name of the notes among the archive's further files.
NOTES = "qconvert.json"


def with_notes(graph: Graph, archive: Archive) -> Graph:
    """The graph with the names that the archive notes; itself if it notes none.

    Raises:
        InvalidModelError: the notes are no JSON object of texts.
    """
    if f"extra/{NOTES}" not in archive:
        return graph
    try:
        notes = json.loads(archive.text(f"extra/{NOTES}"))
        names = {**_texts(notes, "tensors"), **_texts(notes, "buffers")}
        sources, sizes, metadata = (_texts(notes, key) for key in ("operators", "sizes", "metadata"))
        padding = [str(name) for name in notes.get("padding", [])]
        name = str(notes.get("name", graph.name))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidModelError(f"the notes {NOTES} are no map of names") from error
    graph = _renamed(graph, _usable(graph, names), sources, sizes)
    own = {key: value for key, value in graph.metadata.items() if key.startswith("source.")}
    stated = {**metadata, **own, **({FUSED_PADDING: json.dumps([names.get(item, item) for item in padding])} if padding else {})}
    if SOURCE_FORMAT not in stated:
        stated[SOURCE_FORMAT] = "torch"
    return with_signatures(replace(graph, name=name, metadata=stated))


def _texts(notes: Any, key: str) -> dict[str, str]:
    return {str(name): str(value) for name, value in dict(notes.get(key, {})).items()}


def _usable(graph: Graph, names: Mapping[str, str]) -> dict[str, str]:
    """The names that give no two tensors one name."""
    kept = set(graph.tensors) - names.keys()
    found: dict[str, str] = {}
    for old, new in names.items():
        if old in graph.tensors and new and new not in kept:
            kept.add(new)
            found[old] = new
        else:
            kept.add(old)
    return found


def _renamed(graph: Graph, names: Mapping[str, str], sources: Mapping[str, str], sizes: Mapping[str, str]) -> Graph:
    def new(name: str) -> str:
        return names.get(name, name)

    def sized(shape: Shape | None) -> Shape | None:
        return None if shape is None else tuple(sizes.get(size, size) if isinstance(size, str) else size for size in shape)

    tensors = {
        new(name): Tensor(new(name), tensor.dtype, sized(tensor.shape), tensor.data, tensor.quantization)
        for name, tensor in graph.tensors.items()
    }
    ops = tuple(
        Op(op.kind, tuple(map(new, op.inputs)), tuple(map(new, op.outputs)), op.attributes, sources.get(_node(op.source), op.source))
        for op in graph.ops
    )
    return replace(graph, tensors=tensors, ops=ops, inputs=tuple(map(new, graph.inputs)), outputs=tuple(map(new, graph.outputs)))


def _node(source: str) -> str:
    """The node that an operator was read from: "conv2d_1" of "aten::conv2d (conv2d_1)"."""
    return source.rpartition("(")[2].removesuffix(")")
