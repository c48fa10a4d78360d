"""Nodes as PyTorch has them: a torch.fx.GraphModule with their constants as buffers."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.frameworks import torch_package
from qconvert.formats.torch.nodes import Node
from qconvert.formats.torch.stored_values import TorchType
from qconvert.graph import Array

__all__ = ["Module", "tensor_of", "torch_type"]

#: Canonical storage types that PyTorch calls otherwise, or stores in another type.
_TYPES = {
    **dict.fromkeys(("int2", "int4"), "int8"), **dict.fromkeys(("uint2", "uint4"), "uint8"),
    "float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2", "float8e4m3fnuz": "float8_e4m3fnuz", "float8e5m2fnuz": "float8_e5m2fnuz",
}  # fmt: skip


class Module:
    """A torch.fx.GraphModule made of nodes.

    Args:
        nodes: in order; see nodes.needed().
        outputs: what it returns.

    Attributes:
        module: the GraphModule.
        made: node -> the torch.fx.Node that it became.
        buffers: node of a constant -> the name of its buffer.
    """

    def __init__(self, nodes: Sequence[Node], outputs: Sequence[Node]) -> None:
        self._torch = torch_package()
        self.made: dict[Node, Any] = {}
        self.buffers: dict[Node, str] = {}
        self._taken: set[str] = set()
        graph = self._torch.fx.Graph()
        self.module = self._torch.fx.GraphModule({}, self._torch.fx.Graph())
        for node in nodes:
            self.made[node] = self._add_node(graph, node)
        graph.output(tuple(self.made[node] for node in outputs))
        self.module.graph = graph

    def _add_node(self, graph: Any, node: Node) -> Any:
        if node.is_input:
            made = graph.create_node("placeholder", node.name, name=node.name)
            made.target = made.name  # a parameter that is called as another one's value would be overwritten by that
            return made
        if node.data is not None:
            self.buffers[node] = name = self._free(node.name)
            self.module.register_buffer(name, self._constant(node))
            return graph.get_attr(name)
        arguments = tuple(self._argument(value) for value in node.arguments)
        named = {key: self._argument(value) for key, value in node.named.items()}
        return graph.call_function(node.function or self._function(node.operator), arguments, named)

    def _constant(self, node: Node) -> Any:
        """The tensor of a constant."""
        assert node.data is not None
        return tensor_of(node.data)

    def _free(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._taken or hasattr(self._torch.fx.GraphModule, name):
            name, count = f"{wanted}_{count}", count + 1
        self._taken.add(name)
        return name

    def _function(self, operator: str) -> Any:
        space, name, *overload = operator.split(".")
        if space == "operator":
            return getattr(importlib.import_module("operator"), name)
        return getattr(getattr(getattr(self._torch.ops, space), name), overload[0] if overload else "default")

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self.made[value]
        if isinstance(value, TorchType):
            return torch_type(value.name)
        return [self._argument(item) for item in value] if isinstance(value, (list, tuple)) else value


def torch_type(name: str) -> Any:
    """PyTorch's type for a canonical storage type."""
    return getattr(torch_package(), _TYPES.get(name, name))


def tensor_of(data: Array) -> Any:
    """A tensor of PyTorch with a copy of the data."""
    torch = torch_package()
    name = data.dtype.name.replace("_", "") if data.dtype.name.startswith("float8") else data.dtype.name
    if name in ("int2", "int4", "uint2", "uint4"):
        data = data.astype("int8" if name.startswith("i") else "uint8")
    elif data.dtype.kind == "V" or name == "bfloat16" or name.startswith("float8"):
        plain = torch.from_numpy(np.array(data, order="C").view(f"int{8 * data.dtype.itemsize}"))
        return plain.view(torch_type(name))
    return torch.from_numpy(np.array(data, order="C"))
