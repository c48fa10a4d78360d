"""An .onnx file with a unique name for each node, by which TensorRT's messages refer to it.

A file may have nodes without names, several of one name, and names that look like a part of TensorRT's messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.files import map_file

__all__ = ["NamedModel", "Node", "named_model"]

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
