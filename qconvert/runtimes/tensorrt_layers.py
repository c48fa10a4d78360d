"""The layers of an engine, read from a list in the builder's messages, or from the JSON of TensorRT's inspector."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qconvert.runtimes.tensorrt_node_names import NamedModel, Node

__all__ = ["MOVES", "EngineLayer", "EngineTensor", "layers_inspected", "layers_listed"]

#: One line a layer. Constants and Metadata may be absent.
_LINE = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<type>[\w ]+), Inputs: \[(?P<inputs>.*?)\](?:, Constants: \[(?P<constants>.*)\])?"
    r", Outputs: \[(?P<outputs>.*?)\], TacticName: (?P<tactic>.*?), StreamId: -?\d+(?:, Metadata: (?P<metadata>.*))?"
)
_TENSOR = re.compile(r"\{ Name: (.*?), Dimensions: \[([-\d,]*)\].*?, Datatype: (\w+), Format:")
#: A kind of layers whose weights become float values in the product.
_DECOMPRESSED = "runtime_fusion"
#: Kinds of layers that sum products; a node of several layers runs in such a layer.
_SUMS = ("correlation", "deconv", "gemm", _DECOMPRESSED)
#: In the tactics of generated kernels that sum products too, such as those of 1-D convolutions without a bias.
_GENERATED = re.compile(r"__myl_\w*Corr")
_INTEGERS = ("Int8", "UInt8")
_CONVERSIONS = {"QuantizeLinear", "DequantizeLinear"}
#: Operators whose results are values of their data.
MOVES = {
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "Reshape", "Slice", "SpaceToDepth", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """A side of a layer.

    Attributes:
        name: TensorRT's.
        shape: its sizes.
        dtype: its type by TensorRT's name, such as "Int8" or "Float".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class EngineLayer:
    """A layer of an engine.

    Attributes:
        name: TensorRT's, with the names of the file's nodes.
        type: such as "correlation" (a convolution), "gemm", or "kgen" (a generated kernel of elementwise operators).
        inputs, constants, outputs: its sides.
        nodes: those of the file that it computes, or takes part in.
        tactic: the kernel that was chosen.
    """

    name: str
    type: str
    inputs: tuple[EngineTensor, ...]
    constants: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    nodes: tuple[Node, ...]
    tactic: str

    @property
    def sums(self) -> bool:
        """Whether it sums products."""
        return self.type in _SUMS or (self.type == "kgen" and _GENERATED.match(self.tactic) is not None)

    @property
    def integer(self) -> bool | None:
        """Whether its arithmetic is on integers; None if it only converts between float and stored values, with or without data
        movement."""
        data = [side.dtype in _INTEGERS for side in self.inputs]
        if self.sums:
            weights = self.constants if self.type == "kgen" else self.constants[:1]  # generated kernels have scales before them
            operands = data + [any(side.dtype in _INTEGERS for side in weights)] * (len(data) < 2 and bool(weights))
            return self.type != _DECOMPRESSED and bool(operands) and all(operands)
        others = {node.operator for node in self.nodes} - _CONVERSIONS
        stored = bool(data) and all(data) and all(side.dtype in _INTEGERS for side in self.outputs)
        if others <= MOVES:
            return stored or (None if len(others) < len({node.operator for node in self.nodes}) else False)
        return stored and not any(node.operator in _CONVERSIONS for node in self.nodes)


def layers_listed(text: str, model: NamedModel) -> tuple[EngineLayer, ...]:
    """Parse the layers in a message of the builder that lists them."""
    return tuple(_parse_layer_line(found, model) for line in text.splitlines() if (found := _LINE.fullmatch(line.strip())))


def _parse_layer_line(found: re.Match[str], model: NamedModel) -> EngineLayer:
    inputs, constants, outputs = (_tensors(found[side] or "") for side in ("inputs", "constants", "outputs"))
    nodes = model.nodes_in(found["metadata"] or found["name"])
    return EngineLayer(
        model.restore_names(found["name"]), found["type"], inputs, constants, outputs, nodes, model.restore_names(found["tactic"])
    )


def _tensors(text: str) -> tuple[EngineTensor, ...]:
    return tuple(
        EngineTensor(name, tuple(int(size) for size in sizes.split(",") if size), dtype) for name, sizes, dtype in _TENSOR.findall(text)
    )


def layers_inspected(text: str, model: NamedModel) -> tuple[EngineLayer, ...]:
    """Parse the layers in the JSON of TensorRT's inspector, by its documentation; entries of another form are left out."""
    try:
        found = json.loads(text)["Layers"]
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(_parse_layer_json(item, model) for item in found if isinstance(item, dict))


def _parse_layer_json(item: Mapping[str, Any], model: NamedModel) -> EngineLayer:
    inputs, constants, outputs = (
        tuple(EngineTensor(str(side.get("Name", "")), (), _dtype(side)) for side in item.get(key, ()) if isinstance(side, dict))
        for key in ("Inputs", "Constants", "Outputs")
    )
    name, tactic = (model.restore_names(str(item.get(key, ""))) for key in ("Name", "TacticName"))
    kind = str(item.get("LayerType", ""))
    kind = {"CaskConvolution": "correlation", "CaskDeconvolution": "deconv", "CaskGemmConvolution": "gemm"}.get(kind, kind)
    return EngineLayer(name, kind, inputs, constants, outputs, model.nodes_in(str(item.get("Metadata", item.get("Name", "")))), tactic)


def _dtype(side: Mapping[str, Any]) -> str:
    """Return the type of a side by its name in the builder's list."""
    text = str(side.get("Datatype", side.get("Format/Datatype", ""))).upper()
    words = {
        "INT8": "Int8",
        "INT4": "Int4",
        "FP32": "Float",
        "FP16": "Half",
        "BF16": "BFloat16",
        "FP8": "FP8",
        "INT32": "Int32",
        "INT64": "Int64",
    }
    return next((word for name, word in words.items() if re.search(rf"\b{name}\b", text)), text)
