"""A split network as one graph: the graphs of its parts, joined at the tensors between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qconvert.conversion import load
from qconvert.errors import InvalidModelError
from qconvert.formats.reading.border_quantizations import with_input_quantization, with_output_quantization
from qconvert.graph import Graph, Names, Op
from qconvert.graph.metadata import IN_TFLITE, NAMING, READ, origin
from qconvert.operators import KINDS, kind_of
from qconvert.operators.functions import named_functions
from qconvert.operators.shapes import is_compatible
from qconvert.partitioning.manifest import Manifest, PartFile, read_manifest
from qconvert.rewriting.inlining import Inlining
from qconvert.rules.validation import validate

__all__ = ["compose_graph", "named_part", "part_graph", "values_of"]


def compose_graph(path: Path, options: Mapping[str, Any]) -> Graph:
    """Return the graph of a manifest: see plugins.Format. There are no options, since parts have several formats.

    Raises:
        QConvertError: a file is damaged, or is not as the manifest says.
    """
    manifest = read_manifest(path)
    values = values_of(path, manifest)
    made = Inlining(values)
    whole = _Whole(made)
    for state in manifest.states:
        made.ops += [Op("ReadState", (), (name,), {"state": state.name}) for name in state.reads]
    for part in manifest.parts:
        whole.add(part, _part_graph(path, part, values))
    made.ops += [Op("WriteState", (state.written,), (), {"state": state.name}) for state in manifest.states if state.written]
    graph = Graph(
        Path(manifest.source.file).stem or path.parent.name,
        made.tensors,
        (),
        manifest.inputs,
        manifest.outputs,
        metadata={**whole.metadata(), **({READ: json.dumps(manifest.read)} if manifest.read else {})},
        functions=whole.functions,
        states={**values.states, **whole.states},
    ).evolve(ops=made.ops)
    validate(graph)
    return graph


def values_of(path: Path, manifest: Manifest) -> Graph:
    """Return the graph of the tensors that go from part to part.

    Raises:
        InvalidModelError: one that the manifest names is missing, or the first value of a state is.
    """
    values = load(path.parent / manifest.values.file, "qgraph")
    names = {*manifest.inputs, *manifest.outputs, *(name for part in manifest.parts for name in (*part.inputs, *part.outputs))}
    names.update(name for state in manifest.states for name in (*state.reads, state.written) if name)
    missing = sorted(names - values.tensors.keys())
    if missing:
        raise InvalidModelError(f"{manifest.values.file} does not hold the tensor {missing[0]!r}", file=str(path), rule="value-missing")
    computed = {*manifest.inputs, *(name for part in manifest.parts for name in part.outputs)}
    computed.update(name for state in manifest.states for name in state.reads)
    for name in sorted(names - computed):
        if not values[name].is_constant:
            raise InvalidModelError(f"{name!r} is computed by no part", file=str(path), rule="value-not-computed")
    for name in sorted(computed):
        if values[name].is_constant:
            raise InvalidModelError(f"{name!r} is computed by a part and is a constant", file=str(path), rule="value-is-constant")
    for state in manifest.states:
        if state.name not in values.states:
            raise InvalidModelError(
                f"{manifest.values.file} has no initial value of the state {state.name!r}", file=str(path), rule="state-without-value"
            )
    return values


def part_graph(path: Path, part: PartFile) -> Graph:
    """Load the graph of a part's file, or the graph next to an artefact. `path` is the manifest's."""
    return load(path.parent / part.graph.file, "qgraph") if part.graph is not None else load(path.parent / part.model.file, part.format)


def named_part(path: Path, part: PartFile) -> Graph:
    """Load the graph of a part, with inputs and outputs named as in the manifest, but quantized as in the file. `path` is the manifest's.

    Raises:
        InvalidModelError: the number of inputs or outputs is not that of the manifest.
    """
    graph = part_graph(path, part)
    own, others = (*graph.inputs, *graph.outputs), (*part.inputs, *part.outputs)
    if (len(graph.inputs), len(graph.outputs)) != (len(part.inputs), len(part.outputs)):
        raise InvalidModelError(
            "has other inputs or outputs than the manifest lists", where=f"part {part.name!r}", file=str(path), rule="part-differs"
        )
    border = {name: replace(graph[mine], name=name, data=None) for mine, name in zip(own, others, strict=True)}
    made = Inlining(replace(graph, tensors=border, ops=(), inputs=part.inputs, outputs=part.outputs, signatures=()))
    made.inline(graph, part.inputs, part.outputs, "")
    return replace(
        graph, name=part.name, tensors=made.tensors, ops=tuple(made.ops), inputs=part.inputs, outputs=part.outputs, signatures=()
    )


def _part_graph(path: Path, part: PartFile, values: Graph) -> Graph:
    """Load the graph of a part, with the quantizations of the tensors around it."""
    graph = part_graph(path, part)
    for word, own, names in (("takes", graph.inputs, part.inputs), ("gives", graph.outputs, part.outputs)):
        if len(own) != len(names):
            raise InvalidModelError(
                f"{word} {len(own)} values, not {len(names)}", where=f"part {part.name!r}", file=str(path), rule="part-differs"
            )
        for mine, name in zip(own, names, strict=True):
            if graph[mine].dtype != values[name].dtype or not is_compatible(graph[mine].shape, values[name].shape):
                what = f"{graph[mine].dtype} {graph[mine].shape}, not {values[name].dtype} {values[name].shape}"
                raise InvalidModelError(f"{word} {name!r} as {what}", where=f"part {part.name!r}", file=str(path), rule="part-differs")
    graph = _with_own_outputs(graph)
    for index, name in enumerate(part.inputs):
        graph = with_input_quantization(graph, index, values[name].quantization)
    for index, name in enumerate(part.outputs):
        graph = with_output_quantization(graph, index, values[name].quantization)
    return graph


def _with_own_outputs(graph: Graph) -> Graph:
    """Return the graph with an Identity after each output that is an input or a constant."""
    new = Inlining(graph)
    new.ops = list(graph.ops)
    outputs = []
    for name in graph.outputs:
        if name in graph.inputs or graph[name].is_constant:
            other = new.add(replace(graph[name], data=None), f"{name}/given")
            new.ops.append(Op("Identity", (name,), (other,)))
            name = other
        outputs.append(name)
    return graph.evolve(tensors=new.tensors.values(), ops=new.ops, outputs=tuple(outputs)) if tuple(outputs) != graph.outputs else graph


class _Whole:
    """Collects the operators of parts, with their functions, states and metadata."""

    def __init__(self, made: Inlining) -> None:
        self.made = made
        self.functions: dict[str, Graph] = {}
        self.states: dict[str, Any] = {}
        self._notes: dict[str, dict[str, Any] | list[Any]] = {}

    def add(self, part: PartFile, graph: Graph) -> None:
        """Append a part; its functions and states get free names."""
        functions = {name: Names(self.functions).fresh(name) for name in graph.functions}
        states = {name: Names(self.states, self.made.tensors).fresh(name) if name in self.states else name for name in graph.states}
        self.functions |= {functions[name]: _rename_scopes(inner, functions, states) for name, inner in graph.functions.items()}
        self.states |= {states[name]: replace(state, name=states[name]) for name, state in graph.states.items()}
        first = len(self.made.ops)
        self.made.inline(_rename_scopes(graph, functions, states), part.inputs, part.outputs, "")
        if part.format == "tflite":
            self._note(IN_TFLITE, [name for op in self.made.ops[first:] for name in op.outputs if name])
        for key, note in _notes_of(graph):
            self._note(key, note)

    def _note(self, key: str, note: dict[str, Any] | list[Any]) -> None:
        known = self._notes.setdefault(key, type(note)())
        if isinstance(known, dict) and isinstance(note, dict):
            known |= note
        elif isinstance(known, list) and isinstance(note, list):
            known += (item for item in note if item not in known)

    def metadata(self) -> dict[str, str]:
        """Return the joined metadata of all parts."""
        return {key: json.dumps(note) for key, note in self._notes.items()}


def _rename_scopes(graph: Graph, functions: Mapping[str, str], states: Mapping[str, str]) -> Graph:
    """Return the operators of a graph with renamed functions and states."""
    ops = []
    for op in graph.ops:
        changes = {key: functions[value] for key, value in op.attributes.items() if value in named_functions(op) and value in functions}
        if op.kind in KINDS and kind_of(op).rule == "state":
            changes["state"] = states[str(op["state"])]
        ops.append(op.with_attributes(**changes) if changes else op)
    return replace(graph, ops=tuple(ops), functions={}, states={})


def _notes_of(graph: Graph) -> Iterator[tuple[str, dict[str, Any] | list[Any]]]:
    """Yield the notes on tensors in the metadata of a part's file, and those of the conversion that wrote it."""
    said = {**graph.metadata, **origin(graph.metadata)}
    for key in (name for name in NAMING if name != IN_TFLITE):  # which no file says
        try:
            found = json.loads(str(said.get(key, "null")))
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict | list):
            yield key, found
