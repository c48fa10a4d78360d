"""Reads a .tflite file into the canonical graph: container, tensors, signatures and order; operators come from ops/."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.files import map_file
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.notes import restore_operators
from qconvert.formats.tflite.file_contents import read_files, select_signature, text_of
from qconvert.formats.tflite.read_operators import Operations, indices
from qconvert.formats.tflite.schema import decode_text
from qconvert.formats.tflite.tensors import bytes_of_buffer, read_tensors
from qconvert.formats.tflite.verify import verified_root
from qconvert.graph import Graph, Signature, Tensor
from qconvert.graph.metadata import (
    ACTIVATIONS,
    CHANGED,
    DECOMPOSED,
    DENSIFIED,
    DYNAMIC_RANGE,
    IGNORED_SCALES,
    SOURCE_DESCRIPTION,
    SOURCE_FORMAT,
    SOURCE_KERNELS,
    SOURCE_METADATA,
    STATED_ATTRIBUTES,
    STATED_LIMITS,
    TRANSPOSED,
    VARIABLES,
)
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import with_used_functions


def read(path: Path, options: Mapping[str, Any]) -> Graph:
    """The canonical graph of a .tflite file. Constants are views on the memory-mapped file.

    Args:
        path: the file.
        options: "signature", the key of the one entry point that is read; "" for all.

    Raises:
        FileAccessError: the file cannot be read.
        OptionError: it has no such entry point.
        InvalidModelError: it is no TFLite model, is damaged, or contradicts the schema.
        UnsupportedError: it holds operators that are not covered; all are listed.
    """
    return read_bytes(select_signature(map_file(path), str(options.get("signature", ""))), path.stem)


def read_bytes(data: mmap.mmap | bytes, name: str, *, again: bool = False) -> Graph:
    """The canonical graph of a .tflite model in memory; see read().

    Args:
        data: the file's.
        name: of the graph, if it has none.
        again: whether operators that the writer decomposed stay as they are.
    """
    model = verified_root(data)
    if model.version != 3:
        raise InvalidModelError(f"schema version {model.version}; only version 3 exists", rule="unknown-version")
    if not model.subgraphs:
        raise InvalidModelError("the file holds no subgraph", rule="no-subgraph")
    subgraph = model.subgraphs[0]
    draft = Draft()
    operations = Operations(model, data, draft)
    tensor_names = read_tensors(model, data, draft)
    inputs = indices(subgraph.inputs, tensor_names, "graph inputs")
    outputs = indices(subgraph.outputs, tensor_names, "graph outputs")
    ready = {name for name, tensor in draft.tensors.items() if tensor.is_constant} | {*inputs, *draft.variables}
    operations.read(0, tensor_names, ready)
    _require_produced(outputs, ready)
    outputs = draft.distinct(outputs)
    signatures = tuple(_signatures(model, tensor_names, operations, draft))
    metadata = {**_metadata(model, data), **read_files(data), **_ignored_metadata(draft), **_activations(draft), **draft.assumption_note()}
    graph = draft.finish(decode_text(subgraph.name) or name, inputs, outputs, metadata, signatures=signatures)
    states = _used_states(draft)
    if renamed := {name: key for name, key in operations.variables.renamed_states.items() if name in states}:
        graph = replace(graph, metadata={**graph.metadata, VARIABLES: json.dumps(renamed)})
    graph = with_used_functions(replace(graph, states=states, functions=draft.functions))
    return graph if again else restore_operators(graph, _write_and_read)


def _write_and_read(graph: Graph) -> Graph:
    """The graph as it comes back when it is written."""
    from qconvert.formats.tflite.writer import build

    return read_bytes(build(graph, {}), graph.name, again=True)


def _used_states(draft: Draft) -> dict[str, Tensor]:
    """The states that operators are left to read or to write."""
    ops = chain(draft.ops, *(function.ops for function in draft.functions.values()))
    used = {str(op["state"]) for op in ops if kind_of(op).rule == "state"}
    return {name: state for name, state in draft.states.items() if name in used}


def _require_produced(outputs: list[str], ready: set[str]) -> None:
    if not outputs:
        raise InvalidModelError("the model has no outputs", rule="no-outputs")
    for name in outputs:
        if name not in ready:
            raise InvalidModelError("a graph output is computed by no operator", where=repr(name), rule="not-computed")


def _signatures(model: Any, names: list[str], operations: Operations, draft: Draft) -> Iterator[Signature]:
    """The signatures; the subgraphs of those that enter others than the first are functions."""
    for found in model.signatureDefs:
        key, function = decode_text(found.signatureKey), ""
        listed, order = names, list(range(len(names)))
        if found.subgraphIndex:
            function = operations.functions.function_name(found.subgraphIndex, draft, f"signature {key!r}")
            graph, subgraph = draft.functions[function], model.subgraphs[found.subgraphIndex]
            order = [*subgraph.inputs.tolist(), *subgraph.outputs.tolist()]
            listed = [*graph.inputs, *graph.outputs]
        tensors = dict(zip(order, listed, strict=True))
        called = _input_aliases(model.subgraphs[found.subgraphIndex])
        inputs, outputs = (
            {decode_text(pair.name): tensors[at] for pair in side if (at := places.get(pair.tensorIndex, pair.tensorIndex)) in tensors}
            for side, places in ((found.inputs, called), (found.outputs, {}))
        )
        yield Signature(key, inputs, outputs, function)


def _input_aliases(subgraph: Any) -> dict[int, int]:
    """Tensors that are called as an input, and that input: TensorFlow's converter finds a signature's by name, and may name an output that
    is an input's copy in its place."""
    inputs = {subgraph.tensors[index].name: index for index in subgraph.inputs.tolist()}
    found = {index: inputs[tensor.name] for index, tensor in enumerate(subgraph.tensors) if tensor.name in inputs}
    return {index: place for index, place in found.items() if index not in inputs.values()}


def _ignored_metadata(draft: Draft) -> dict[str, str]:
    """What the file states of scales that its kernels do not use, no number in JSON being a text there; and what was sparse."""
    stated = {
        name: [[scale if math.isfinite(scale) else str(scale), point] for scale, point in pairs]
        for name, pairs in draft.ignored_scales.items()
    }
    found = {IGNORED_SCALES: json.dumps(stated)} if stated else {}
    return {**found, DENSIFIED: json.dumps(draft.densified)} if draft.densified else found


def _activations(draft: Draft) -> dict[str, str]:
    """The type of the 8-bit activations if all are uint8, so that a conversion back to TFLite keeps it."""
    found = {t.dtype for t in draft.tensors.values() if t.dtype in ("int8", "uint8") and t.is_quantized and not t.is_constant}
    return {ACTIVATIONS: "uint8"} if found == {"uint8"} else {}


def _metadata(model: Any, data: mmap.mmap | bytes) -> dict[str, str]:
    """The description and every metadata buffer, in base64 if it is no short text."""
    found = {SOURCE_FORMAT: "tflite", SOURCE_KERNELS: "litert:default"}
    if model.description:
        found[SOURCE_DESCRIPTION] = decode_text(model.description)
    buffers = model.buffers
    for index, entry in enumerate(model.metadata):
        if entry.buffer >= len(buffers):
            raise InvalidModelError(f"metadata entry {index} names buffer {entry.buffer} of {len(buffers)}", rule="unknown-buffer")
        raw = bytes_of_buffer(buffers[entry.buffer], data)
        content = b"" if raw is None else raw.tobytes()
        name = decode_text(entry.name)
        if name in (TRANSPOSED, CHANGED, DECOMPOSED, DYNAMIC_RANGE, STATED_ATTRIBUTES, STATED_LIMITS):
            found[name] = decode_text(content.rstrip(b"\0"))
        else:
            found[f"{SOURCE_METADATA}{name}"] = text_of(content)
    return found
