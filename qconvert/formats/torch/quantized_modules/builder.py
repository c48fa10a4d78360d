"""The builder for modules of torch.ao.nn.quantized, as operators' write functions see it.

A quantized tensor exists in one form: PyTorch's own, with its scale and zero point inside. Its float values stand after aten::dequantize,
and movements move it as it is. All calls are of TorchScript's operators, of such as PyTorch 1.13 has too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.errors import UnsupportedError
from qconvert.formats.torch.program import Node
from qconvert.formats.torch.stored_values import TorchType
from qconvert.formats.torch.writing import Builder
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range
from qconvert.graph.activations import ACTIVATIONS, activation_bounds, clip_range

#: The operator of nodes that call a layer.
LAYER = "layer"
#: Storage types -> PyTorch's types of quantized tensors.
_QUANTIZED = {
    **dict.fromkeys(("int8", "int4", "int2"), "qint8"), **dict.fromkeys(("uint8", "uint4", "uint2"), "quint8"), "int32": "qint32",
}  # fmt: skip
_REMEDY = "Write a torch.export program, which has integers of all types: a name that ends in .pt2, or --form program."


@dataclass(frozen=True, slots=True)
class Layer:
    """A module of torch.ao.nn.quantized, or of torch.ao.nn.intrinsic.quantized, which have a Relu inside.

    Attributes:
        kind: its class.
        arguments: of its constructor: numbers, and arrays that are tensors there.
        quantization: scale and zero point of its results, where they are attributes.
        weights: of layers with packed weights: qint8, with their quantization.
        bias: real numbers, or None.
        parameters: real numbers that are attributes, by name.
        fused: whether it has a Relu inside.
    """

    kind: str
    arguments: tuple[Any, ...] = ()
    quantization: tuple[float, int] | None = None
    weights: tuple[Array, Quantization] | None = None
    bias: Array | None = None
    parameters: Mapping[str, Array] = field(default_factory=dict)
    fused: bool = False


class ModuleBuilder(Builder):
    """Collects layers besides calls and constants.

    Attributes:
        layers: node of a call -> the layer.
        quantizations: node of a constant that is a quantized tensor -> its quantization.
        on_bytes: whether the operator that is written computes on quantized tensors what others compute on float values.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, "fast")
        self.layers: dict[Node, Layer] = {}
        self.quantizations: dict[Node, Quantization] = {}
        self.on_bytes = False
        _require_storable(graph)

    def aten(self, operator: str, *arguments: Any, **named: Any) -> Node:
        """Adds a call of aten's operator; that of several axes at once, which PyTorch 1.x lacks, as several calls."""
        if operator == "squeeze.dims":
            node, axes = arguments
            for axis in sorted(axes, reverse=True):
                node = super().aten("squeeze", node, axis)
            return super().aten("alias", node) if node is arguments[0] else node
        return super().aten(operator, *arguments, **named)

    def layer(self, op: Op, layer: Layer, *nodes: Node) -> Node:
        """Adds a call of a layer, which is named after the operator's result."""
        node = self._add_node(LAYER, nodes, name=op.outputs[0].partition(";")[0])
        self.layers[node] = layer
        self.sources[node] = op.source
        return node

    def stored_value(self, name: str) -> Any:
        """The node of a tensor as it is stored: a quantized tensor, or plain numbers. None for ""."""
        node = super().stored_value(name)
        tensor = self.graph.tensors[name] if name else None
        if tensor is not None and tensor.quantization is not None and node.data is not None:
            self._note_quantization(node, tensor)
        return node

    def _note_quantization(self, node: Node, tensor: Tensor) -> None:
        """Notes that a constant is a quantized tensor, which has to be able to hold its quantization."""
        self.quantized_type(tensor.dtype)
        self.quantizations[node] = tensor.require_quantization()
        if self.quantizations[node].block_size:
            raise UnsupportedError(
                "scales in blocks cannot be written as modules of PyTorch", where=f"tensor {tensor.name!r}", rule="blocks-not-writable"
            )

    def quantized_type(self, dtype: str) -> TorchType:
        """PyTorch's type of quantized tensors for a storage type."""
        if dtype not in _QUANTIZED:
            raise UnsupportedError(f"PyTorch has no quantized tensors of {dtype}", remedy=_REMEDY, rule="dtype-not-writable")
        return TorchType(_QUANTIZED[dtype])

    def make_quantized_tensor(self, node: Node, tensor: Tensor) -> Node:
        """A quantized tensor of the plain integers that a node gives."""
        quantization = tensor.require_quantization()
        if not quantization.is_per_tensor:
            raise UnsupportedError(
                "activations with scales along an axis cannot be written as modules of PyTorch",
                where=f"tensor {tensor.name!r}",
                rule="not-per-tensor",
            )
        return self.aten("_make_per_tensor_quantized_tensor", node, quantization.step, quantization.point)

    def take_input(self, name: str) -> Node:
        """Adds an input; integers with a quantization become a quantized tensor."""
        node, tensor = super().take_input(name), self.graph[name]
        if tensor.quantization is not None:
            self.quantized_type(tensor.dtype)
            self._values[name] = self.make_quantized_tensor(node, tensor)
        return node

    def output_node(self, name: str) -> Node:
        """An output: the integers of a quantized tensor."""
        node: Node = self.stored_value(name)
        return self.aten("int_repr", node) if self.graph[name].is_quantized else node

    def dequantize(self, node: Any, tensor: Tensor) -> Node:
        """Adds a dequantize of a quantized tensor; a constant of plain integers becomes one."""
        if self.on_bytes:
            return node  # type: ignore[no-any-return]
        if node.data is not None and node not in self.quantizations:
            self._note_quantization(node, tensor)
        return self.aten("dequantize", node)

    def quantize(self, node: Any, tensor: Tensor) -> Node:
        """Adds a quantize of float values to the quantization of `tensor`, within its limits."""
        quantization = tensor.require_quantization()
        kind = self.quantized_type(tensor.dtype)
        if quantization.axis is not None or quantization.block_size:
            return self.aten("quantize_per_channel", node, *self._parameters(tensor), quantization.axis, kind)
        node = self.aten("quantize_per_tensor", node, quantization.step, quantization.point, kind)
        limits = self.limits(tensor)
        return node if limits == integer_range(tensor.dtype) else self._clamp_integers(node, quantization, *limits)

    def pad(self, tensor: Tensor, node: Node, pads: list[int], value: float) -> Node:
        """Adds a pad; in a quantized tensor the filler is a float value."""
        quantization = tensor.quantization
        real = value if quantization is None else float((value - quantization.point) * np.float64(quantization.scale[0]))
        return super().pad(tensor, node, pads, real)

    def _clamp_integers(self, node: Node, quantization: Quantization, low: int, high: int) -> Node:
        """A quantized tensor clipped to a range of its integers; bounds are float values, which PyTorch rounds to them."""
        scale, point = np.float64(quantization.scale[0]), quantization.point
        return self.clamp(node, float((low - point) * scale), float((high - point) * scale))

    def clamp(self, node: Node, low: float, high: float) -> Node:
        """A quantized tensor between real bounds, both of which qnnpack wants. It takes channels that are last in memory for others."""
        return self.aten("hardtanh", self.aten("contiguous", node), low, high)

    def output_qparams(self, op: Op) -> tuple[float, int]:
        """Scale and zero point of the result, which is a tensor of bytes."""
        quantization = self.result(op).require_quantization()
        return quantization.step, quantization.point

    def has_relu(self, op: Op) -> bool:
        """Whether an operator has a relu that its quantization does not imply."""
        tensor = self.tensor(op.outputs[0])
        return op.attributes.get("activation") == "relu" and not self._is_implied(tensor, ACTIVATIONS["relu"])

    def finish(self, op: Op, node: Any, index: int = 0) -> None:
        """Ends an operator: see Builder; its value is a quantized tensor already where it computes on such."""
        if self.on_bytes:
            self.close(op, node)
        else:
            super().finish(op, node, index)

    def close(self, op: Op, node: Node) -> None:
        """Ends an operator whose node is a quantized tensor on the result's quantization already, but for an activation other than relu."""
        tensor = self.tensor(op.outputs[0])
        bounds = activation_bounds(op)
        if bounds not in ((None, None), ACTIVATIONS["relu"]) and not self._is_implied(tensor, bounds):
            node = self._clamp_integers(node, tensor.require_quantization(), *clip_range(tensor, bounds))
        self.set_node(tensor.name, node)

    def real_vector(self, name: str) -> Array:
        """The float values of a constant in float32."""
        return np.asarray(self.tensor(name).float_values(), np.float32)


ModuleFunction = Callable[[Op, ModuleBuilder], None]


def _require_storable(graph: Graph) -> None:
    """Raises UnsupportedError, with all such tensors counted, where PyTorch has no quantized tensors of a type."""
    found: dict[str, list[str]] = {}
    for name, tensor in graph.tensors.items():
        if not is_storable(tensor):
            found.setdefault(tensor.dtype, []).append(name)
    if not found:
        return
    listed = "; ".join(f"{len(names)} of {dtype}, such as {names[0]!r} ({_user(graph, names[0])})" for dtype, names in found.items())
    raise UnsupportedError(
        f"quantized tensors of PyTorch have 8 bits or are int32; the model has others: {listed}", remedy=_REMEDY, rule="dtype-not-writable"
    )


def is_storable(tensor: Tensor) -> bool:
    """Whether PyTorch has quantized tensors of its type; an integer constant of a bias becomes real numbers anyway."""
    is_bias = tensor.is_constant and tensor.dtype == "int64"
    return tensor.quantization is None or tensor.dtype in _QUANTIZED or is_bias


def _user(graph: Graph, name: str) -> str:
    """The operator that makes or reads a tensor, in words."""
    op = next((op for op in graph.ops if name in (*op.outputs, *op.inputs)), None)
    return "no operator's" if op is None else f"of {op.kind} {op.source}".strip()
