"""Reads an .xml file with its .bin: each layer literally, by one function; absorb_quantization then makes quantized operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import Change, Graph, InvalidModelError, Target, UnsupportedError, format_counts, name_file_in_errors, needed_ops
from qconvert_openvino.constants import constant_of
from qconvert_openvino.container import Model, read_model
from qconvert_openvino.ops import READERS
from qconvert_openvino.reading import Draft, Reading


def read(path: Path, options: Mapping[str, Any]) -> Graph:
    """Read the network of an .xml file and the .bin file next to it, with Quantize and Dequantize operators.

    Raises:
        QConvertError: the files cannot be read, are damaged, or have layers that are not covered; all such layers are named.
    """
    with name_file_in_errors(path), np.errstate(all="ignore"):  # scales and bounds of damaged files are checked later
        return _read_graph(read_model(path))


def _read_graph(model: Model) -> Graph:
    _require_known(model)
    draft = Draft(model)
    inputs = []
    for node in model.nodes:
        if node.type == "Parameter":
            inputs.append(draft.add_port(node, next(iter(node.ports))))
    for node in model.nodes:
        if node.id in draft.done or node.type in ("Parameter", "Const", "Result"):
            continue
        # a part of a constant is no operator, unless its result is an output
        if constant_of(node) is None or any(draft.is_output(node, port) for port in node.ports):
            READERS[node.type](Reading(draft, node))
    outputs = _read_outputs(draft)
    metadata = {**model.notes.metadata, "source.format": "openvino"}
    graph = Graph(model.name, draft.tensors, (), tuple(inputs), tuple(outputs), metadata=metadata)
    return graph.evolve(ops=needed_ops(draft.ops, outputs))


def _require_known(model: Model) -> None:
    unknown = Counter(node.type for node in model.nodes if node.type not in READERS and node.type not in ("Parameter", "Const", "Result"))
    for node in model.nodes:
        if not node.opset.startswith("opset") and node.type not in unknown:
            unknown[f"{node.type} of {node.opset}"] += 1
    if unknown:
        raise UnsupportedError(
            f"these layers are not covered: {format_counts(unknown)}",
            remedy="Cut the model before them, or export it to ONNX.",
            rule="operators-not-covered",
        )


def _read_outputs(draft: Draft) -> list[str]:
    """Return the outputs in the order of the Results, each with a distinct name."""
    found: list[str] = []
    for node in draft.model.nodes:
        if node.type != "Result":
            continue
        if not node.inputs:
            raise node.invalid("the layer has no input", rule="no-inputs-or-outputs")
        reading = Reading(draft, node)
        name = reading.value(0)
        if name in found or draft.tensors[name].is_constant:
            tensor = draft.tensors[name]
            name = reading.step("Identity", (name,), tensor.shape, tensor.dtype)
            draft.tensors[name] = replace(draft.tensors[name], quantization=tensor.quantization)
        found.append(name)
    if not found:
        raise InvalidModelError("the model has no Result", rule="no-inputs-or-outputs")
    return found


def restore_names(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change, ...]]:
    """Rename quantized tensors such as `x/int8` to `x`, the name of their float values in the file, if it is free."""
    names: dict[str, str] = {}
    for name, tensor in graph.tensors.items():
        real = name.removesuffix(f"/{tensor.dtype}")
        if real != name and real not in graph and tensor.is_quantized and name not in graph.public:
            names.setdefault(real, name)
    return graph.with_names({name: real for real, name in names.items()}), ()
