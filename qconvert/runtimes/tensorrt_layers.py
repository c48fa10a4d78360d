"""The layers of an engine, read from a list in the builder's messages or from the JSON of TensorRT's inspector, and the nodes of the .onnx
file that they compute: each node gets a name of its own for that, since a file may have nodes without names, several of one name, and
names that look like a part of TensorRT's messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.files import map_file
from qconvert.operators import KINDS

_TOKEN = re.compile(r"qconvert\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an .onnx file.

    Attributes:
        name: its name, or that of the first tensor that it computes.
        operator: its type.
        inputs, outputs: names of the tensors that it reads and computes.
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model whose nodes have names of their own.

    Attributes:
        content: the file with these names.
        nodes: its nodes as they were, those of subgraphs too.
        inputs: name -> sizes of each input that is no initializer; a dynamic dimension is a text, "" if it has no name.
        constants: names of its initializers.
        file: the file, in whose folder its external data are; "" if there is none.
    """

    content: bytes
    nodes: tuple[Node, ...]
    inputs: dict[str, tuple[int | str, ...]]
    constants: frozenset[str]
    file: str = ""

    def nodes_in(self, text: str) -> tuple[Node, ...]:
        """Return the nodes in a text of TensorRT, each once."""
        found = dict.fromkeys(int(index) for index in _TOKEN.findall(text))
        return tuple(self.nodes[index] for index in found if index < len(self.nodes))

    def restore_names(self, text: str) -> str:
        """Return a text of TensorRT with the file's own node names."""
        return _TOKEN.sub(lambda match: nodes[0].name if (nodes := self.nodes_in(match[0])) else match[0], text)


def named_model(file: Path | bytes) -> NamedModel:
    """Give each node of a file, or of its content, a unique name; raises InvalidModelError if it is no ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(bytes(map_file(file)) if isinstance(file, Path) else file)
    except (DecodeError, RecursionError) as error:
        raise InvalidModelError("is not an ONNX model", file=str(file) if isinstance(file, Path) else "", rule="not-this-format") from error
    nodes = []
    for node in _nodes(model.graph):
        nodes.append(Node(node.name or next(filter(None, node.output), node.op_type), node.op_type, tuple(node.input), tuple(node.output)))
        node.name = f"qconvert.{len(nodes) - 1}."
    constants = frozenset(item.name for item in model.graph.initializer)
    inputs = {item.name: tuple(map(_size, item.type.tensor_type.shape.dim)) for item in model.graph.input if item.name not in constants}
    return NamedModel(model.SerializeToString(), tuple(nodes), inputs, constants, str(file) if isinstance(file, Path) else "")


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _size(dimension: Any) -> int | str:
    return int(dimension.dim_value) if dimension.HasField("dim_value") else str(dimension.dim_param)


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
MOVES = {"Concat", "Flatten", "MaxPool"}.union(name for name, kind in KINDS.items() if kind.rule == "move" and kind.by_place)


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
