"""Reads an .onnx model into the canonical graph: values, order and what cannot be read natively; operators come from ops/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic import is_accumulator_scale
from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.formats.onnx.container import open_model, parse_model
from qconvert.formats.onnx.graph_reading import add_constants, declared_values, read_nodes
from qconvert.formats.onnx.inference import infer_shapes
from qconvert.formats.onnx.noted_operators import read_relabelled_notes, with_decomposed
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.notes import with_signatures
from qconvert.graph import Array, Graph, Shape, drop_keys
from qconvert.graph.carried_states import parse_states
from qconvert.graph.metadata import RELABELLED, SOURCE_FORMAT, SOURCE_OPSET, SOURCE_PRODUCER, STATED_BIAS_SCALES, STATES, read_entry
from qconvert.operators.shapes_and_functions import with_used_functions


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


def read_inferred(model: Any, name: str, *, again: bool = False) -> Graph:
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


def read_model(model: Any, name: str, *, again: bool = False) -> Graph:
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
    read_nodes(graph, draft, graph.opset_imports, declared)
    outputs = draft.distinct([_output_name(value, draft) for value in graph.outputs])
    metadata = drop_keys(metadata, RELABELLED)
    found = draft.finish(graph.name or name, inputs, outputs, metadata, functions=draft.functions)
    found = with_signatures(_with_bias_scales(with_used_functions(found)))
    return found if again else with_decomposed(found, partial(_write_and_read, model))


def _write_and_read(model: Any, graph: Graph) -> Graph:
    """The graph as it comes back, operator by operator, when it is written as `model` was: of its source, in its opset."""
    from qconvert.formats.onnx.writer import HIGHEST_OPSET, LOWEST_OPSET, build

    stated = {str(key): str(value) for key, value in model.metadata_props.items()}
    metadata = {key: value for key, value in {**graph.metadata, **stated}.items() if key.startswith("source.")}
    opset = min(max(int(model.graph.opset_imports.get("", 1)), LOWEST_OPSET), HIGHEST_OPSET)
    written = build(replace(graph, metadata=metadata), opset, {}).SerializeToString()
    return read_model(parse_model(written, infer=False), graph.name, again=True)


def _read_values(graph: Any, declared: Mapping[str, tuple[str, Shape | None]], draft: Draft) -> list[str]:
    """Declares the constants and the inputs; returns the names of the inputs that are no constants (before IR version 4 both were)."""
    add_constants(graph, draft)
    inputs = []
    for value in graph.inputs:
        if value.name in draft.tensors:
            continue
        dtype, shape = declared[value.name]
        if dtype == "unknown":
            raise _not_a_tensor_error(value, "input")
        draft.add_exactly(value.name, dtype, shape)
        inputs.append(value.name)
    return inputs


def _label_states(inputs: list[str], metadata: Mapping[str, str], draft: Draft) -> None:
    """Inputs that are states have the scales that the metadata state: no node says any, where they are only moved before they are used."""
    for item in parse_states(metadata[STATES]) if STATES in metadata else ():
        if item.input in inputs and draft.tensors[item.input].dtype == item.state.dtype:
            draft.tensors[item.input] = replace(draft.tensors[item.input], quantization=item.state.quantization)
            draft.states[item.state.name] = item.state


def _output_name(value: Any, draft: Draft) -> str:
    if value.name not in draft.tensors:
        raise InvalidModelError("a graph output is computed by no node", where=repr(value.name), rule="not-computed")
    if draft.tensors[value.name].dtype == "unknown":
        raise _not_a_tensor_error(value, "output")
    return str(value.name)


def _not_a_tensor_error(value: Any, side: str) -> UnsupportedError:
    reason = "its type is neither stated nor inferred" if value.type is None else f"it is {value.type}, not a tensor of a covered type"
    return UnsupportedError(reason, where=f"{side} {value.name!r}", rule="type-not-covered")


def _with_bias_scales(graph: Graph) -> Graph:
    """Biases with the scales that their source stated, kept in the metadata where QOperator implies others by a last bit."""
    stated = read_entry(graph.metadata, STATED_BIAS_SCALES, _read_scales, "a map of names to numbers")
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


def _read_scales(listed: Any) -> dict[str, Array]:
    return {str(name): np.array(scales, np.float32).reshape(-1) for name, scales in listed.items()}


def _metadata(model: Any) -> dict[str, str]:
    """Where the model came from, and its own properties. What an earlier conversion wrote is kept under its own keys."""
    found = {SOURCE_FORMAT: "onnx", SOURCE_OPSET: str(model.graph.opset_imports.get("", 0))}
    if model.producer_name:
        found[SOURCE_PRODUCER] = f"{model.producer_name} {model.producer_version or ''}".strip()
    return {**{str(key): str(value) for key, value in model.metadata_props.items()}, **found}
