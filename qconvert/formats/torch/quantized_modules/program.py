"""Nodes and layers as PyTorch has them: a torch.fx.GraphModule of quantized modules, and quantized tensors as buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.formats.torch.frameworks import quantized_modules, torch_package
from qconvert.formats.torch.nodes import Node
from qconvert.formats.torch.program import Module, tensor_of
from qconvert.formats.torch.quantized_modules.builder import LAYER, Layer, ModuleBuilder
from qconvert.graph import Array, Quantization

__all__ = ["Modules"]

#: Operators of aten that TorchScript calls otherwise.
_RENAMED = {"sym_size": "size"}


class Modules(Module):
    """A torch.fx.GraphModule made of what a builder collected.

    Args:
        builder: likewise.
    """

    def __init__(self, builder: ModuleBuilder) -> None:
        self._builder = builder
        super().__init__(builder.nodes, builder.outputs)
        self.module.eval()

    def _add_node(self, graph: Any, node: Node) -> Any:
        if node.operator != LAYER:
            return super()._add_node(graph, node)
        name = self._free(node.name)
        self.module.add_module(name, _make_module(self._builder.layers[node]))
        return graph.create_node("call_module", name, tuple(self._argument(value) for value in node.arguments), name=f"{name}_result")

    def _constant(self, node: Node) -> Any:
        quantization = self._builder.quantizations.get(node)
        return super()._constant(node) if quantization is None or node.data is None else _make_quantized_tensor(node.data, quantization)

    def _free(self, wanted: str) -> str:
        """A name that is an identifier, as old versions want."""
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in wanted).strip("_").lower()
        return super()._free(plain if plain[:1].isalpha() else f"constant_{plain}".strip("_"))

    def _function(self, operator: str) -> Any:
        """Without its overload, which TorchScript finds by the arguments."""
        space, name, *_ = operator.split(".")
        if space == "operator":
            return super()._function(operator)
        return getattr(getattr(self._torch.ops, space), _RENAMED.get(name, name))


def _make_module(layer: Layer) -> Any:
    """A module with its weights and the quantization of its results."""
    arguments = [_parameter(value) if isinstance(value, np.ndarray) else value for value in layer.arguments]
    module = getattr(quantized_modules(layer.fused), layer.kind)(*arguments)
    if layer.weights is not None:
        module.set_weight_bias(_make_quantized_tensor(*layer.weights), None if layer.bias is None else tensor_of(layer.bias))
    for name, values in layer.parameters.items():
        setattr(module, name, _parameter(values) if isinstance(getattr(module, name), torch_package().nn.Parameter) else tensor_of(values))
    if layer.quantization is not None:
        as_tensors = isinstance(module.scale, torch_package().Tensor)
        module.scale, module.zero_point = (tensor_of(np.array(value)) for value in layer.quantization) if as_tensors else layer.quantization
    return module.eval()


def _parameter(values: Array) -> Any:
    return torch_package().nn.Parameter(tensor_of(values), requires_grad=False)


def _make_quantized_tensor(data: Array, quantization: Quantization) -> Any:
    """A quantized tensor. Scales along an axis are float64 there."""
    torch = torch_package()
    if quantization.axis is None:
        return torch._make_per_tensor_quantized_tensor(tensor_of(data), float(quantization.scale[0]), int(quantization.zero_point[0]))
    scales, points = tensor_of(quantization.scale.astype(np.float64)), tensor_of(quantization.zero_point.astype(np.int64))
    return torch._make_per_channel_quantized_tensor(tensor_of(data), scales, points, quantization.axis)
