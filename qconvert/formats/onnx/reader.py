"""Reads an .onnx model into the canonical graph: values, order and what cannot be read natively; operators come from ops/.

as_written() reads back the graph of a file just written: operators that the writer decomposed are their nodes in the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic import is_accumulator_scale
from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.files import map_file
from qconvert.formats.onnx.container import open_model, parse_model
from qconvert.formats.onnx.graph_reading import add_constants, declared_values, read_nodes
from qconvert.formats.onnx.inference import infer_shapes
from qconvert.formats.onnx.initializers import Files
from qconvert.formats.onnx.model import Graph as ModelGraph
from qconvert.formats.onnx.model import Model, describe_type, node_reads
from qconvert.formats.onnx.noted_operators import read_relabelled_notes, with_decomposed
from qconvert.formats.onnx.proto import HIGHEST_OPSET, GraphProto, ModelProto
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.notes import with_signatures
from qconvert.formats.reading.quantizations import fuse_quantized_ops
from qconvert.graph import Array, Graph, Shape, drop_keys
from qconvert.graph.carried_states import parse_states
from qconvert.graph.metadata import (
    DECOMPOSED,
    RELABELLED,
    SOURCE_FORMAT,
    SOURCE_OPSET,
    SOURCE_PRODUCER,
    STATED_BIAS_SCALES,
    STATES,
    read_entry,
)
from qconvert.operators.shapes_and_functions import with_used_functions
from qconvert.rewriting.control_flow import without_calls


def read(path: Path, options: Mapping[str, Any]) -> Graph:
    """The canonical graph of an .onnx file. External data are views on the memory-mapped files.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no ONNX model, is damaged, or contradicts the specification.
        UnsupportedError: it holds values that are no tensors.
    """
    return read_inferred(open_model(path, infer=False), path.stem)


def read_bytes(data: bytes, name: str) -> Graph:
    """The canonical graph of an ONNX model in memory; see read()."""
    return read_inferred(parse_model(data, infer=False), name)


def read_inferred(model: Model, name: str, *, again: bool = False) -> Graph:
    """The graph of a model; onnx's shape inference, which takes longer than all else, only where our own rules leave something open.

    `again` as of read_model().
    """
    try:
        graph = read_model(model, name, again=again)
    except QConvertError:
        graph = None
    if graph is None or not _is_complete(graph):
        infer_shapes(model)
        graph = read_model(model, name, again=again)
    return graph


def _is_complete(graph: Graph) -> bool:
    """Whether every type and every size is known, apart from those that the inputs leave open."""
    if not all(map(_is_complete, graph.functions.values())):
        return False
    symbols = {size for name in graph.inputs for size in graph[name].shape or () if isinstance(size, str)}
    return not any(graph.of_kind("Opaque")) and all(
        tensor.dtype != "unknown" and tensor.shape is not None and all(isinstance(size, int) or size in symbols for size in tensor.shape)
        for tensor in graph.tensors.values()
    )


def read_model(model: Model, name: str, *, again: bool = False) -> Graph:
    """The canonical graph of a verified model (model.py), Quantize and Dequantize as they stand.

    Args:
        model: the model.
        name: of the graph, if it has none.
        again: whether operators that the writer decomposed stay as they are.
    """
    graph = model.graph
    declared, metadata = dict(declared_values(graph)), _metadata(model)
    draft = Draft(set(declared))
    draft.relabelled = read_relabelled_notes(metadata)
    inputs = _read_values(graph, declared, draft)
    _label_states(inputs, metadata, draft)
    read_nodes(graph, draft, declared)
    outputs = draft.distinct([_output_name(item.name, graph, draft) for item in graph.proto.output])
    metadata = drop_keys(metadata, RELABELLED)
    found = draft.finish(graph.proto.name or name, inputs, outputs, metadata, functions=draft.functions)
    found = with_signatures(_with_bias_scales(with_used_functions(without_calls(found))))
    return found if again else with_decomposed(found, partial(_write_and_read, model))


def _write_and_read(model: Model, graph: Graph) -> Graph:
    """The graph as it comes back, operator by operator, when it is written as `model` was: of its source, in its opset."""
    from qconvert.formats.onnx.writer import LOWEST_OPSET, build

    stated = {entry.key: entry.value for entry in model.proto.metadata_props}
    metadata = {key: value for key, value in {**graph.metadata, **stated}.items() if key.startswith("source.")}
    opset = min(max(int(model.graph.opsets.get("", 1)), LOWEST_OPSET), HIGHEST_OPSET)
    written = build(replace(graph, metadata=metadata), opset, {})
    return read_model(Model(written, Files(Path(os.devnull), b"")), graph.name, again=True)


def _read_values(graph: ModelGraph, declared: Mapping[str, tuple[str, Shape | None]], draft: Draft) -> list[str]:
    """Declares the constants and the inputs; returns the names of the inputs that are no constants (before IR version 4 both were)."""
    add_constants(graph, draft)
    inputs = []
    for name in graph.inputs:
        if name in draft.tensors:
            continue
        dtype, shape = declared[name]
        if dtype == "unknown":
            raise _not_a_tensor_error(name, graph, "input")
        draft.add_exactly(name, dtype, shape)
        inputs.append(name)
    return inputs


def _label_states(inputs: list[str], metadata: Mapping[str, str], draft: Draft) -> None:
    """Inputs that are states have the scales that the metadata state: no node says any, where they are only moved before they are used."""
    for item in parse_states(metadata[STATES]) if STATES in metadata else ():
        if item.input in inputs and draft.tensors[item.input].dtype == item.state.dtype:
            draft.tensors[item.input] = replace(draft.tensors[item.input], quantization=item.state.quantization)
            draft.states[item.state.name] = item.state


def _output_name(name: str, graph: ModelGraph, draft: Draft) -> str:
    if name not in draft.tensors:
        raise InvalidModelError("a graph output is computed by no node", where=repr(name), rule="not-computed")
    if draft.tensors[name].dtype == "unknown":
        raise _not_a_tensor_error(name, graph, "output")
    return name


def _not_a_tensor_error(name: str, graph: ModelGraph, side: str) -> UnsupportedError:
    stated = graph.values[name][0]
    reason = (
        "its type is neither stated nor inferred" if stated is None else f"it is {describe_type(stated)}, not a tensor of a covered type"
    )
    is_tensor = stated is None or stated.HasField("tensor_type")
    remedy = "" if is_tensor else f"Export the model with tensors as its {side}s (skl2onnx: options={{'zipmap': False}})."
    return UnsupportedError(reason, where=f"{side} {name!r}", rule="type-not-covered", remedy=remedy)


def _with_bias_scales(graph: Graph) -> Graph:
    """Biases with the scales that their source stated, kept in the metadata where QOperator implies others by a last bit."""

    def read(listed: Any) -> dict[str, Array]:
        return {str(name): np.array(scales, np.float32).reshape(-1) for name, scales in listed.items()}

    stated = read_entry(graph.metadata, STATED_BIAS_SCALES, read, "a map of names to numbers")
    if stated is None:
        return graph
    changed = []
    for name, scales in stated.items():
        tensor = graph.tensors.get(name)
        q = None if tensor is None or tensor.dtype != "int32" else tensor.quantization
        if tensor is not None and q is not None and q.scale.shape == scales.shape and is_accumulator_scale(scales, q.scale):
            changed.append(replace(tensor, quantization=replace(q, scale=scales)))
    metadata = drop_keys(graph.metadata, STATED_BIAS_SCALES)
    return graph.evolve(tensors=changed, metadata=metadata)


def _metadata(model: Model) -> dict[str, str]:
    """Where the model came from, and its own properties. What an earlier conversion wrote is kept under its own keys."""
    found = {SOURCE_FORMAT: "onnx", SOURCE_OPSET: str(model.graph.opsets.get("", 0))}
    if model.proto.producer_name:
        found[SOURCE_PRODUCER] = f"{model.proto.producer_name} {model.proto.producer_version}".strip()
    return {**{entry.key: entry.value for entry in model.proto.metadata_props}, **found}


#: The function that holds the nodes of all operators that are decomposed.
_DECOMPOSED = "decomposed"


def as_written(path: Path, graph: Graph, proto: Any) -> Graph:
    """The graph with a Call of a function of their nodes in place of the operators that are decomposed.

    The rest is not read again: the writer notes every operator whose nodes are not read as that operator. Of a graph with functions, whose
    operators are not noted, the whole file is read.

    Args:
        path: the file.
        graph: that was written.
        proto: the file's verified onnx.ModelProto, without large constants (wire.py).
    """
    files = Files(path.parent, map_file(path))
    if graph.functions:
        return _read(proto, graph, files)
    notes = [entry.value for entry in proto.metadata_props if entry.key == DECOMPOSED]
    decomposed = {name for text in notes for item in json.loads(text) for name in item["outputs"] if name}
    if not decomposed:
        return graph
    part = _read(_cut_decomposed(proto, graph, decomposed), graph, files)
    ops = [
        op.derive("Call", op.inputs, op.outputs, function=_DECOMPOSED) if decomposed.intersection(op.outputs) else op for op in graph.ops
    ]
    return graph.evolve(ops=ops, functions={**part.functions, _DECOMPOSED: replace(part, functions={})})


def _read(proto: Any, graph: Graph, files: Files) -> Graph:
    """The quantized graph of nodes; of borders of a part the scales are those of the graph, as no node may say them."""
    found = read_inferred(Model(proto, files), graph.name, again=True)
    pairs = ((found[name], graph.tensors.get(name)) for name in (*found.inputs, *found.outputs))
    labelled = [
        replace(tensor, quantization=written.quantization)
        for tensor, written in pairs
        if written is not None and not tensor.is_quantized and tensor.dtype == written.dtype
    ]
    return fuse_quantized_ops(found.evolve(tensors=labelled, ops=found.ops))


def _cut_decomposed(proto: Any, graph: Graph, decomposed: Set[str]) -> Any:
    """A ModelProto of the nodes that compute the tensors `decomposed` from other tensors of the graph."""
    nodes = _needed_nodes(proto.graph.node, decomposed, graph.tensors.keys() - decomposed)
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in node_reads(node) if name not in made)
    types = {value.name: value for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)}
    constants = [tensor for tensor in proto.graph.initializer if tensor.name in read]
    held = {tensor.name for tensor in constants}
    return ModelProto(
        ir_version=proto.ir_version,
        opset_import=proto.opset_import,
        metadata_props=[entry for entry in proto.metadata_props if entry.key != DECOMPOSED],
        graph=GraphProto(
            node=nodes,
            initializer=constants,
            input=[types[name] for name in read if name not in held],
            output=[types[name] for name in sorted(decomposed & made)],
            value_info=[types[name] for name in made - decomposed if name in types],
        ),
    )


def _needed_nodes(nodes: Any, wanted: Set[str], known: Set[str]) -> list[Any]:
    """The nodes that `wanted` depends on, in order, from the tensors `known` on."""
    producers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    waiting, taken = list(wanted), set[int]()
    while waiting:
        place = producers.get(waiting.pop())
        if place is not None and place not in taken:
            taken.add(place)
            waiting += (name for name in node_reads(nodes[place]) if name not in known)
    return [nodes[place] for place in sorted(taken)]
