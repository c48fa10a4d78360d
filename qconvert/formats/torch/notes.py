"""What qconvert wrote next to a program or modules: names of the source, which PyTorch does not keep, and the graph's metadata.

The notes give names, and say where operators are written as several calls, which a reader looks at
(formats/torch/export/noted_operators.py): a false note makes a wrong name, never another function. Those next to TorchScript state shapes
and types of inputs too, as the option --input-shape does, which rules over them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.reading.notes import Noted, dump_notes, noted_signatures, read_note, with_signatures
from qconvert.formats.torch.archive import Archive
from qconvert.graph import Graph, Op, Shape, drop_keys
from qconvert.graph.activations import find_unstated_attributes, narrow_constants
from qconvert.graph.metadata import FUSED_PADDING, NUMERICS, SOURCE_FORMAT, SOURCE_KERNELS, STATED_ATTRIBUTES, STATED_LIMITS

#: The name of the notes among the archive's further files, and where these lie: in archives of today, and of PyTorch before 2.8.
NOTES = "qconvert.json"
_FOLDERS = ("extra", "extra_files")


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of a program.

    Attributes:
        name: of the graph; None if none is stated.
        metadata: of the graph.
        buffers, tensors: names of constants in the model, and of other values in the program -> those of the graph.
        operators: names of calls -> where the source has the operator.
        padding: calls that pad for the operator after them.
        sizes: symbols of the program -> names of sizes.
        decomposed: operators that are written as several calls.
        inputs: shapes and types of inputs, as the option --input-shape states them.
    """

    name: str | None
    metadata: Mapping[str, str]
    buffers: Mapping[str, str]
    tensors: Mapping[str, str]
    operators: Mapping[str, str]
    padding: Sequence[str]
    sizes: Mapping[str, str]
    decomposed: Sequence[Noted]
    inputs: str = ""


def graph_notes(graph: Graph, provenance: Mapping[str, str], numerics: str = "") -> dict[str, Any]:
    """The notes of a graph as a whole: its name, metadata, entry points and attributes that PyTorch cannot state.

    Args:
        graph: that is written.
        provenance: where it came from.
        numerics: "exact" where operators are written to be so.
    """
    metadata = {**graph.metadata, **provenance, **noted_signatures(graph)}
    metadata = drop_keys(metadata, SOURCE_KERNELS, NUMERICS)
    if numerics:
        metadata[NUMERICS] = numerics
    notes = {STATED_ATTRIBUTES: find_unstated_attributes(graph), STATED_LIMITS: narrow_constants(graph)}
    return {"name": graph.name, "metadata": metadata | dump_notes(notes)}


def read_notes(archive: Archive) -> Notes | None:
    """The notes in an archive; None if there are none.

    Raises:
        InvalidModelError: they are no JSON object of texts.
    """
    places = [place for folder in _FOLDERS if (place := f"{folder}/{NOTES}") in archive]
    if not places:
        return None
    try:
        found = json.loads(archive.text(places[0]))
        metadata, buffers, tensors, names = (_texts(found, key) for key in ("metadata", "buffers", "tensors", "operators"))
        padding = [str(name) for name in found.get("padding", [])]
        name = None if "name" not in found else str(found["name"])
        decomposed = [read_note(item) for item in found.get("decomposed", [])]
        inputs = str(found.get("inputs", ""))
        return Notes(name, metadata, buffers, tensors, names, padding, _texts(found, "sizes"), decomposed, inputs)
    except (OverflowError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidModelError(f"the notes {NOTES} are not a map of names", rule="malformed-metadata") from error


def with_notes(graph: Graph, notes: Notes | None) -> Graph:
    """The graph with the names that are noted; itself if there are no notes."""
    if notes is None:
        return graph
    names = {**notes.tensors, **notes.buffers}
    graph = _rename_graph(graph, _usable(graph, names), notes.operators, notes.sizes)
    own = {key: value for key, value in graph.metadata.items() if key.startswith("source.")}
    padding = {FUSED_PADDING: json.dumps([names.get(item, item) for item in notes.padding])} if notes.padding else {}
    stated = {**notes.metadata, **own, **padding}
    if SOURCE_FORMAT not in stated:
        stated[SOURCE_FORMAT] = "torch"
    return with_signatures(replace(graph, name=graph.name if notes.name is None else notes.name, metadata=stated))


def _texts(notes: Any, key: str) -> dict[str, str]:
    return {str(name): str(value) for name, value in dict(notes.get(key, {})).items()}


def _usable(graph: Graph, names: Mapping[str, str]) -> dict[str, str]:
    """The names without duplicates: of two tensors with one noted name, the first gets it; others of that name are renamed."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for old, new in names.items():
        if old in graph.tensors and new and new not in taken:
            taken.add(new)
            found[old] = new
    free = graph.names(taken)
    for old in graph.tensors:
        if old not in found and old in taken:
            found[old] = free.fresh(old)
            taken.add(found[old])
    return found


def _rename_graph(graph: Graph, names: Mapping[str, str], sources: Mapping[str, str], sizes: Mapping[str, str]) -> Graph:
    sizes = {**_sizes_after(graph, names, sizes), **sizes}

    def rename_sizes(shape: Shape | None) -> Shape | None:
        return None if shape is None else tuple(sizes.get(size, size) if isinstance(size, str) else size for size in shape)

    def rename_source(op: Op) -> str:
        node = op.source.rpartition("(")[2].removesuffix(")")  # "conv2d_1" of "aten::conv2d (conv2d_1)"
        return sources.get(op.outputs[0] if op.outputs else "") or sources.get(node, op.source)

    tensors = {name: replace(tensor, shape=rename_sizes(tensor.shape)) for name, tensor in graph.tensors.items()}
    return replace(graph, tensors=tensors, ops=tuple(replace(op, source=rename_source(op)) for op in graph.ops)).with_names(names)


def _sizes_after(graph: Graph, names: Mapping[str, str], noted: Mapping[str, str]) -> dict[str, str]:
    """New names for dynamic dimensions called <tensor>_<axis>, if the tensor is renamed. Names stay unique."""
    shapes = [(name, tensor.shape or ()) for name, tensor in graph.tensors.items()]
    found = {
        size: f"{names[name]}_{axis}"
        for name, shape in shapes
        if name in names
        for axis, size in enumerate(shape)
        if size == f"{name}_{axis}" and size not in noted
    }
    taken = {size for _, shape in shapes for size in shape if isinstance(size, str)}.difference(found).union(noted.values())
    return {old: new for old, new in found.items() if new not in taken}
