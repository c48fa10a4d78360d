"""Reads an .onnx model into the canonical graph: values, order and what cannot be read natively; operators come from ops/."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic import is_accumulator_scale
from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.formats.onnx.builder import DTYPE_NAMES
from qconvert.formats.onnx.container import open_model, parse_model
from qconvert.formats.onnx.inference import infer_shapes
from qconvert.formats.onnx.node import NotCoveredError
from qconvert.formats.onnx.opaque import read_opaque
from qconvert.formats.onnx.reading import Reading
from qconvert.formats.onnx.relabelled import relabelled
from qconvert.formats.onnx.spelled import with_spelled
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.signatures import with_signatures
from qconvert.graph import Array, Graph, Shape, canonical_dtype
from qconvert.graph.carried import carried
from qconvert.graph.metadata import RELABELLED, SOURCE_FORMAT, SOURCE_OPSET, SOURCE_PRODUCER, STATED_BIAS_SCALES, STATES
from qconvert.graph.shapes import UNKNOWN
from qconvert.plugins import operators

__all__ = ["read", "read_bytes"]


def read(path: Path) -> Graph:
    """The canonical graph of an .onnx file. External data are views on the memory-mapped files.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no ONNX model, is damaged, or contradicts the specification.
        UnsupportedError: it holds values that are no tensors.
    """
    return _read_inferred(open_model(path, infer=False), path.stem)


def read_bytes(data: bytes, name: str) -> Graph:
    """The canonical graph of an ONNX model in memory; see read()."""
    return _read_inferred(parse_model(data, infer=False), name)


def _read_inferred(model: Any, name: str) -> Graph:
    """The graph of a model; onnx's shape inference, which takes longer than all else, only where our own rules leave something open."""
    try:
        graph = read_model(model, name)
    except QConvertError:
        graph = None
    if graph is None or not _is_complete(graph):
        infer_shapes(model)
        graph = read_model(model, name)
    return graph


def _is_complete(graph: Graph) -> bool:
    """Whether every type and every size is known, apart from those that the inputs leave open."""
    symbols = {size for name in graph.inputs for size in graph[name].shape or () if isinstance(size, str)}
    return all(op.kind != "Opaque" for op in graph.ops) and all(
        tensor.dtype != "unknown" and tensor.shape is not None and all(isinstance(size, int) or size in symbols for size in tensor.shape)
        for tensor in graph.tensors.values()
    )


def read_model(model: Any, name: str, *, again: bool = False) -> Graph:
    """The canonical graph of a verified model (model.py), Quantize and Dequantize as they stand.

    Args:
        model: the model.
        name: of the graph, if it has none.
        again: whether operators that the writer spelled out stay as they are.
    """
    graph = model.graph
    declared, metadata = dict(_declared(graph)), _metadata(model)
    draft = Draft(set(declared))
    draft.relabelled = relabelled(metadata)
    inputs = _read_values(graph, declared, draft)
    _label_states(inputs, metadata, draft)
    readers = operators("onnx", "read")
    for node in graph:
        reading = Reading(draft, node, _version(model, node), declared)
        reading.require_types()
        key = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        count = len(draft.ops)
        try:
            if key not in readers:
                raise NotCoveredError(key)
            readers[key](reading)
        except NotCoveredError:
            draft.withdraw(count)
            read_opaque(reading, node, draft)
    outputs = draft.distinct([_output_name(value, draft) for value in graph.outputs])
    draft.prune(outputs)
    draft.settle_names(outputs)
    found = Graph(
        name=graph.name or name,
        tensors=draft.tensors,
        ops=(),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        metadata={key: value for key, value in metadata.items() if key != RELABELLED},
    )
    found = with_signatures(_with_bias_scales(found.evolve(ops=draft.ops)))
    return found if again else with_spelled(found, partial(_rewritten, model))


def _rewritten(model: Any, graph: Graph) -> Graph:
    """The graph as it comes back, operator by operator, when it is written as `model` was: of its source, in its opset."""
    from qconvert.formats.onnx.writer import HIGHEST_OPSET, LOWEST_OPSET, build

    stated = {str(key): str(value) for key, value in model.metadata_props.items()}
    metadata = {key: value for key, value in {**graph.metadata, **stated}.items() if key.startswith("source.")}
    opset = min(max(_version_of(model, ""), LOWEST_OPSET), HIGHEST_OPSET)
    written = build(replace(graph, metadata=metadata), opset, {}).SerializeToString()
    return read_model(parse_model(written, infer=False), graph.name, again=True)


def _declared(graph: Any) -> Any:
    """Name, type and shape of every value that the file names, as it or its shape inference says."""
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs if value.name)]
    inputs = set(graph.inputs)
    for value in values:
        is_tensor = value.type is None or value.type.kind == "Tensor"
        dtype = DTYPE_NAMES.get(value.type.element, "unknown") if value.type is not None and is_tensor else "unknown"
        yield value.name, (dtype, _shape(value, value in inputs) if is_tensor else None)


def _shape(value: Any, is_input: bool) -> Shape | None:
    """The shape that is stated. Sizes without a name, or numbered by onnx's shape inference (unk__0 …), say nothing of inner values."""
    if value.shape is None:
        return None
    sizes = [None if isinstance(size, str) and size.startswith("unk__") and not is_input else size for size in value.shape]
    unnamed = (f"{value.name}_{axis}" if is_input else UNKNOWN for axis in range(len(sizes)))
    return tuple(size if isinstance(size, int) else size or name for size, name in zip(sizes, unnamed, strict=True))


def _read_values(graph: Any, declared: Mapping[str, tuple[str, Shape | None]], draft: Draft) -> list[str]:
    """Declares the constants and the inputs; returns the names of the inputs that are no constants (before IR version 4 both were)."""
    for value in graph.initializers.values():
        data = constant_data(value.const_value)
        draft.add_exactly(value.name, canonical_dtype(data.dtype), data.shape, data)
    inputs = []
    for value in graph.inputs:
        if value.name in draft.tensors:
            continue
        dtype, shape = declared[value.name]
        if dtype == "unknown":
            raise _no_tensor(value, "input")
        draft.add_exactly(value.name, dtype, shape)
        inputs.append(value.name)
    return inputs


def _label_states(inputs: list[str], metadata: Mapping[str, str], draft: Draft) -> None:
    """Inputs that are states have the scales that the metadata state: no node says any, where they are only moved before they are used."""
    for item in carried(metadata[STATES]) if STATES in metadata else ():
        if item.input in inputs and draft.tensors[item.input].dtype == item.state.dtype:
            draft.tensors[item.input] = replace(draft.tensors[item.input], quantization=item.state.quantization)


def constant_data(tensor: Any) -> Array:
    """The data of a constant (mapped.py); text as str."""
    data = np.asarray(tensor.numpy())
    if data.dtype.kind in "OSU":
        texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in data.reshape(-1)]
        return np.array(texts, object).reshape(data.shape)
    return data


def _version(model: Any, node: Any) -> int:
    """The opset of a node's domain; 1 for a domain that the model does not import, which onnxruntime takes."""
    return _version_of(model, node.domain)


def _version_of(model: Any, domain: str) -> int:
    return int(model.graph.opset_imports.get(domain, 1))


def _output_name(value: Any, draft: Draft) -> str:
    if value.name not in draft.tensors:
        raise InvalidModelError("a graph output is computed by no node", where=repr(value.name))
    if draft.tensors[value.name].dtype == "unknown":
        raise _no_tensor(value, "output")
    return str(value.name)


def _no_tensor(value: Any, side: str) -> UnsupportedError:
    reason = "its type is neither stated nor inferred" if value.type is None else f"it is {value.type}, not a tensor of a covered type"
    return UnsupportedError(reason, where=f"{side} {value.name!r}")


def _with_bias_scales(graph: Graph) -> Graph:
    """Biases with the scales that their source stated, kept in the metadata where QOperator implies others by a last bit."""
    text = graph.metadata.get(STATED_BIAS_SCALES)
    if text is None:
        return graph
    changed = []
    for name, scales in _parsed_scales(text).items():
        tensor = graph.tensors.get(name)
        q = None if tensor is None or tensor.dtype != "int32" else tensor.quantization
        if tensor is not None and q is not None and q.scale.shape == scales.shape and is_accumulator_scale(scales, q.scale):
            changed.append(replace(tensor, quantization=replace(q, scale=scales)))
    metadata = {key: value for key, value in graph.metadata.items() if key != STATED_BIAS_SCALES}
    return graph.evolve(tensors=changed, metadata=metadata)


def _parsed_scales(text: str) -> dict[str, Array]:
    try:
        return {str(name): np.array(scales, np.float32).reshape(-1) for name, scales in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidModelError(f"the metadata entry {STATED_BIAS_SCALES} is no map of names to numbers") from error


def _metadata(model: Any) -> dict[str, str]:
    """Where the model came from, and its own properties. What an earlier conversion wrote is kept under its own keys."""
    found = {SOURCE_FORMAT: "onnx", SOURCE_OPSET: str(model.graph.opset_imports.get("", 0))}
    if model.producer_name:
        found[SOURCE_PRODUCER] = f"{model.producer_name} {model.producer_version or ''}".strip()
    return {**{str(key): str(value) for key, value in model.metadata_props.items()}, **found}
