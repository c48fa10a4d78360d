"""Writes a .param file and the .bin file next to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qconvert.plugin import Change, Graph, Tensor, UnsupportedError, format_count, join_errors, legality, lower
from qconvert_ncnn.container import Layer, format_param
from qconvert_ncnn.ops import WRITERS
from qconvert_ncnn.quantizations import is_int8_layer
from qconvert_ncnn.writing import Writing, blob_params


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    """Write a graph after the passes of the target, which give the data of int8 layers ncnn's quantizations.

    Inputs and outputs of the network are float values.

    Args:
        graph: with spatial operators that are channels_first and one sample a run.
        path: of the .param file.
        options: `numerics`, "exact" or "fast": whether tensors that int8 layers do not round are rounded.

    Raises:
        UnsupportedError: operators that ncnn does not have; all are listed.
    """
    writing = layers_of(graph, options.get("numerics") != "fast")
    writing.notes.metadata = {**graph.metadata, **(options.get("provenance") or {})}
    path.write_text(format_param(writing.layers), encoding="utf-8", newline="\n")
    weights = b"".join(part for layer in writing.layers for part in layer.weights)
    path.with_suffix(".bin").write_bytes(weights + writing.notes.data())
    return _describe_changes(writing)


def layers_of(graph: Graph, rounds: bool) -> Writing:
    """Return the layers of a graph; operators that ncnn lacks are decomposed; see write()."""
    legal = legality(WRITERS, layout="channels_first")
    graph = lower(graph, legal).graph
    writing = Writing(graph, rounds)
    for name in graph.inputs:
        _write_input(writing, graph[name])
    failed: list[UnsupportedError] = []
    for op in graph.ops:
        try:
            if op.kind not in WRITERS:
                raise UnsupportedError(
                    f"ncnn has no layer for {op.kind}", where=f"{op.source} {op.outputs[0]!r}".strip(), rule="operators-not-writable"
                )
            if reason := legal(graph.tensors, op):
                raise UnsupportedError(f"{op.kind} cannot be written: {reason}", where=str(op), rule="variant-not-writable")
            WRITERS[op.kind](op, writing)
        except UnsupportedError as error:
            failed.append(error)
            for name in op.outputs:
                writing.values.setdefault(name, writing.blobs.name(name))
    if failed:
        remedy = failed[0].remedy or "Cut the model before them, with --subgraph."
        raise join_errors(failed, remedy=remedy, rule="operators-not-writable")
    _write_outputs(writing)
    writing.layers = _insert_splits(writing)
    for name in (*graph.outputs, *writing.values):
        writing.note(name)
    return writing


def _write_input(writing: Writing, tensor: Tensor) -> None:
    """Write an input of float values; of a quantized input the dequantized ones."""
    if tensor.dtype != "float32" and tensor.quantization is None:
        reason = f"an input is {tensor.dtype}; ncnn requires float32"
        raise UnsupportedError(reason, where=repr(tensor.name), remedy="Cut it off, with --subgraph.", rule="dtype-not-writable")
    name = writing.blobs.name(tensor.name)
    writing.add("Input", name, [], [name], blob_params(writing.sizes(tensor.name)))
    writing.values[tensor.name] = name
    writing.note(tensor.name)


def _write_outputs(writing: Writing) -> None:
    """Make each output a blob that no layer reads, in the graph's order and with the output's name."""
    wanted = list(writing.graph.outputs)
    writing.notes.outputs = [writing.values[name] for name in wanted]
    read = {name for layer in writing.layers for name in layer.inputs}
    computed = [name for layer in writing.layers if layer.kind != "Input" for name in layer.outputs if name not in read]
    if [writing.values[name] for name in wanted] == computed and all(writing.blobs.name(name) == writing.values[name] for name in wanted):
        return
    moved: dict[str, str] = {}
    for name in wanted:
        if writing.graph[name].is_constant:
            raise UnsupportedError("an output is a constant", where=repr(name), rule="output-is-constant")
        found, own = writing.values[name], writing.blobs.name(name)
        if found == own and name not in writing.graph.inputs:
            moved[own] = writing.blobs.fresh(f"{name}/inside")
    writing.layers = [layer.rename(moved) for layer in writing.layers]
    writing.inside = moved
    writing.notes.outputs = []
    for name in wanted:
        found = writing.values[name]
        own = writing.blobs.name(name) if name not in writing.graph.inputs else writing.blobs.fresh(f"{name}/out")
        if name in writing.graph.inputs:
            writing.notes.names[own] = name
        writing.notes.outputs.append(own)
        writing.add("Noop", own, [moved.get(found, found)], [own], {})


def _insert_splits(writing: Writing) -> list[Layer]:
    """Return the layers with a Split after each blob that several layers read; ncnn requires it."""
    readers: dict[str, int] = {}
    for layer in writing.layers:
        for name in layer.inputs:
            readers[name] = readers.get(name, 0) + 1
    parts = {name: [writing.blobs.fresh(f"{name}_split{index}") for index in range(count)] for name, count in readers.items() if count > 1}
    rest = {name: iter(found) for name, found in parts.items()}
    found: list[Layer] = []
    for layer in writing.layers:
        found.append(replace(layer, inputs=tuple(next(rest[name]) if name in rest else name for name in layer.inputs)))
        for name in layer.outputs:
            if name in parts:
                found.append(Layer("Split", writing.blobs.fresh(f"split_{name}"), (name,), tuple(parts[name])))
    return found


def _describe_changes(writing: Writing) -> tuple[Change | str, ...]:
    graph, notes = writing.graph, list[Change | str]()
    plain = sum(bool(op.attributes.get("arithmetic")) for op in graph.ops)
    if plain:
        text = f"{format_count(plain, 'operator')} rounded once, halves away from zero or to even, not as the source's kernels round"
        notes.append(Change(text, exact=False))
    if writing.unrounded:
        text = f"{format_count(writing.unrounded, 'intermediate tensor')} not rounded as in the source (numerics fast)"
        notes.append(Change(text, exact=False))
    layers = sum(is_int8_layer(graph, op) for op in graph.ops)
    notes.append(Change(f"{format_count(layers, 'layer')} on int8, {len(writing.stored)} of them with integers for the next", exact=True))
    return tuple(notes)
