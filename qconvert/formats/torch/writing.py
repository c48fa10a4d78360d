"""The interface of operators' write functions: nodes for the stored and the float values of tensors, and ways to add calls.

A quantized tensor exists in two forms in the written program: its stored integers, and its float values after a dequantize_per_tensor or
dequantize_per_channel of quantized_decomposed, one for each reader, as PyTorch's own exporter has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import IN_BYTES, REALS
from qconvert.errors import UnsupportedError
from qconvert.formats.torch.program import Node, find_needed_nodes
from qconvert.formats.torch.stored_values import TorchType
from qconvert.formats.writing import OperatorWriting
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, canonical_dtype, integer_range
from qconvert.graph.activations import activation_bounds, clip_range, is_exact

#: Storage types that PyTorch has, or that another of its types holds.
_KNOWN = frozenset(
    ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
     *IN_BYTES, "float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz")
)  # fmt: skip


class Builder(OperatorWriting):
    """Collects the nodes of a program.

    Args:
        graph: the canonical graph that is written.
        numerics: "exact" or "fast", as the writer's option says.
        whole: id of an operator that lowering emitted -> the one that it is a part of.

    Attributes:
        is_exact: whether operators with quantizations give the integers that they mean, and not those that float32 gives.
        wide: whether the operator that is written has float values in float64.
        decomposed: operators, by their id, that are found again by a note alone.
        nodes: in order, also such as nothing depends on.
        names: node -> the canonical tensor whose stored values it gives.
        sources: node -> the operator of the source that it stands for.
        helpers: nodes that pad for the operator after them.
        deferred: lists of sizes that have no node of their own until one is asked for.
        sizes_of: what finds these sizes.
        op: the operator that is being written.
        outputs: what the program returns.
    """

    destination = "for PyTorch"

    def __init__(self, graph: Graph, numerics: str = "exact", whole: Mapping[int, Op] | None = None) -> None:
        super().__init__(graph)
        self._whole = whole or {}
        self.is_exact = numerics != "fast"
        self.wide = False
        self.decomposed = {id(op): op for op in self._whole.values()}
        self.nodes: list[Node] = []
        self.names: dict[Node, str] = {}
        self.sources: dict[Node, str] = {}
        self.helpers: set[Node] = set()
        self.deferred: set[str] = set()
        self.sizes_of: Callable[[Builder, str], list[Any]] | None = None
        self.op: Op | None = None
        self.outputs: list[Node] = []
        self._values: dict[str, Node] = {}
        self._scales: dict[int, tuple[Quantization, Any, Any]] = {}  # with the quantization, whose id would else be another's one day

    def call(self, operator: str, *arguments: Any, **named: Any) -> Node:
        """Adds a call of an operator such as "aten.add.Tensor", without the overload for its default; returns the node."""
        node = self._add_node(operator, arguments, named)
        if self.op is not None:
            self.sources[node] = self.op.source
        return node

    def _add_node(self, operator: str, *parts: Any, **more: Any) -> Node:
        self.nodes.append(Node(self.aten, operator, *parts, **more))
        return self.nodes[-1]

    def function(self, function: Callable[..., Any], *arguments: Any) -> Node:
        """Adds a call of a function of Python, in a program that is never written."""
        return self._add_node("function", arguments, function=function)

    def aten(self, operator: str, *arguments: Any, **named: Any) -> Node:
        """Adds a call of aten's operator, such as "relu" or "add.Tensor"."""
        return self.call(f"aten.{operator}", *arguments, **named)

    def cast(self, node: Any, dtype: str) -> Node:
        """Adds a change of type to a canonical storage type."""
        return self.aten("to.dtype", node, self.dtype(dtype))

    def dtype(self, name: str) -> TorchType:
        """PyTorch's type for a canonical storage type; raises UnsupportedError if it has none."""
        if name not in _KNOWN:
            raise UnsupportedError(f"{name} values cannot be written for PyTorch", rule="dtype-not-writable")
        return TorchType(name)

    def buffer(self, data: Array, hint: str) -> Node:
        """Adds a constant; returns its node. The text of names goes into Python code that PyTorch makes, so only harmless characters are
        kept."""
        data = np.asarray(data)
        self.dtype(canonical_dtype(data.dtype))
        name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_/:;- ") else "_" for letter in hint)
        return self._add_node("", name=name or "constant", data=data)

    def stored_value(self, name: str) -> Any:
        """The node of a tensor's stored values; a constant becomes a buffer. None for ""."""
        if not name:
            return None
        if name in self._values:
            return self._values[name]
        tensor = self.graph.tensors[name]
        if name in self.deferred and self.sizes_of is not None:
            sizes = [self.aten("scalar_tensor", size, dtype=self.dtype(tensor.dtype)) for size in self.sizes_of(self, name)]
            self._values[name] = self.aten("stack", sizes) if tensor.rank else sizes[0]
            return self._values[name]
        if tensor.data is None:
            raise UnsupportedError("the tensor is read before it is computed", where=f"tensor {name!r}", rule="not-in-order")
        node = self.buffer(tensor.data, name)
        self._values[name] = node
        self.names[node] = name
        return node

    def set_node(self, name: str, node: Node) -> None:
        """Sets the node of the stored values of the tensor `name`."""
        if not name:
            return
        if node in self.names or not node.operator:  # another tensor's already
            node = self.aten("alias", node)
        self._values[name] = node
        self.names[node] = name

    def float_value(self, name: str) -> Any:
        """The node of a tensor's float values: dequantized if it is quantized, else the tensor itself. None for ""."""
        if not name:
            return None
        tensor = self.graph.tensors[name]
        if tensor.quantization is None:
            is_narrow = tensor.dtype in REALS and tensor.dtype != "float64"
            return self.widen(self.stored_value(name)) if self.wide and is_narrow else self.stored_value(name)
        return self.dequantize(self.stored_value(name), tensor)

    def stored_input(self, op: Op, index: int = 0) -> Any:
        """The node of the stored values of an input."""
        return self.stored_value(op.inputs[index])

    def float_input(self, op: Op, index: int = 0) -> Any:
        """The node of the float values of an input."""
        return self.float_value(op.inputs[index])

    def widen(self, node: Node) -> Node:
        """Float values in float64."""
        self.note_operator()
        return self.cast(node, "float64")

    def note_operator(self) -> None:
        """Marks the current operator as one that a reader recognizes only by a note."""
        if self.op is not None and id(self.op) not in self._whole:
            self.decomposed[id(self.op)] = self.op

    def stored_values(self, op: Op) -> list[Any]:
        """The nodes of the stored values of all inputs."""
        return [self.stored_value(name) for name in op.inputs]

    def float_values(self, op: Op) -> list[Any]:
        """The nodes of the float values of all inputs."""
        return [self.float_value(name) for name in op.inputs]

    def dequantize(self, node: Any, tensor: Tensor) -> Node:
        """Adds a dequantize of the stored integers, or floats of 8 bits, of `tensor`."""
        quantization = tensor.require_quantization()
        if "int" not in tensor.dtype:
            return _dequantize_floats(self, node, tensor)
        if quantization.block_size:
            return _dequantize_blocks(self, node, tensor)
        if not self.wide:
            return self._call_decomposed("dequantize", node, tensor)
        self.note_operator()
        if quantization.axis is not None:  # dequantize_per_channel multiplies in float32, whatever type it gives
            return _dequantize_exactly(self, node, tensor)
        return self._call_decomposed("dequantize", node, tensor, out_dtype=self.dtype("float64"))

    def quantize(self, node: Any, tensor: Tensor) -> Node:
        """Adds a quantize of float values to the quantization of `tensor`."""
        if "int" not in tensor.dtype:
            return _quantize_floats(self, node, tensor)
        return _quantize_exactly(self, node, tensor) if self.wide else self._call_decomposed("quantize", node, tensor)

    def _call_decomposed(self, what: str, node: Any, tensor: Tensor, **named: Any) -> Node:
        """Adds a call of quantized_decomposed's operator for one scale, or for scales along an axis."""
        quantization = tensor.require_quantization()
        numbers: tuple[Any, ...]
        if quantization.axis is None and not quantization.block_size:
            form, numbers = "per_tensor", (quantization.step, quantization.point)
        else:
            form, numbers = "per_channel", (*self._parameters(tensor), quantization.axis)
        operator = f"quantized_decomposed.{what}_{form}"
        return self.call(operator, node, *numbers, *self.limits(tensor), self.dtype(tensor.dtype), **named)

    def _parameters(self, tensor: Tensor) -> tuple[Any, Any]:
        """The buffers of scales and zero points along an axis, shared by all tensors with one quantization."""
        quantization = tensor.require_quantization()
        if id(quantization) not in self._scales:
            points = self.buffer(quantization.zero_point.astype(np.int64), f"{tensor.name}/zero_point")
            scales = self.buffer(quantization.scale.astype(np.float32), f"{tensor.name}/scale")
            self._scales[id(quantization)] = quantization, scales, points
        return self._scales[id(quantization)][1:]

    def limits(self, tensor: Tensor) -> tuple[int, int]:
        """The smallest and largest integer that the quantization of a tensor uses of its type."""
        if "int" not in tensor.dtype:
            raise UnsupportedError(f"scales of {tensor.dtype} cannot be written for PyTorch", rule="quantization-not-writable")
        low, high = tensor.require_quantization().limits(tensor.dtype)
        return int(low), int(high)

    def pad(self, tensor: Tensor, node: Node, pads: list[int], value: float) -> Node:
        """Adds a pad of the stored values of `tensor` with the stored value `value`, both sides of the last axis first."""
        return self.aten("constant_pad_nd", node, pads, value)

    def output_node(self, name: str) -> Node:
        """The node of an output of the program: the tensor's stored values."""
        return self.stored_value(name)  # type: ignore[no-any-return]

    def store(self, op: Op, node: Node) -> None:
        """Ends an operator: the node gives the stored values of its first output."""
        self.set_node(op.outputs[0], node)

    def store_indices(self, name: str, node: Node) -> None:
        """Sets the node of whole numbers that PyTorch gives in int64, in the type of the tensor `name`."""
        dtype = self.tensor(name).dtype
        self.set_node(name, node if dtype == "int64" else self.cast(node, dtype))

    def finish(self, op: Op, node: Any, index: int = 0) -> None:
        """Ends an operator: its float value becomes output `index`, with the fused activation, quantized if the tensor is."""
        tensor = self.tensor(op.outputs[index])
        bounds = activation_bounds(op)
        if bounds != (None, None) and not self._is_implied(tensor, bounds):
            node = self.clip(node, *(bounds if self.wide else self._round_bounds(tensor, bounds)))
        if tensor.quantization is not None:
            node = self.quantize(node, tensor)
        elif self.wide and tensor.dtype in REALS and tensor.dtype != "float64":
            node = self.cast(node, tensor.dtype)
        self.set_node(tensor.name, node)

    def _is_implied(self, tensor: Tensor, bounds: tuple[float | None, float | None]) -> bool:
        """Whether the quantization of a tensor keeps within an activation's bounds anyway."""
        if tensor.quantization is None or not tensor.quantization.is_per_tensor:
            return False
        certain = not self.wide or is_exact(bounds, tensor)
        return certain and clip_range(tensor, bounds) == integer_range(tensor.dtype)

    def _round_bounds(self, tensor: Tensor, bounds: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
        """The bounds of an activation; if rounding one may fall either way, the float values of the integers that it stands for."""
        if tensor.quantization is None or is_exact(bounds, tensor):
            return bounds
        limits, ends = clip_range(tensor, bounds), tensor.quantization.limits(tensor.dtype)
        scale, point = tensor.quantization.step, tensor.quantization.point
        low, high = (None if limit == end else (limit - point) * scale for limit, end in zip(limits, ends, strict=True))
        return low, high

    def clip(self, node: Any, low: float | None, high: float | None) -> Node:
        """Adds a relu, or a clamp between bounds."""
        if (low, high) == (0.0, None):
            return self.aten("relu", node)
        return self.aten("hardtanh", node, low, high) if None not in (low, high) else self.aten("clamp", node, low, high)

    def rank(self, op: Op) -> int:
        """The rank of the first input."""
        return len(self.shape(op))

    def shape(self, op: Op, side: int | str = 0) -> tuple[int | str, ...]:
        """The shape of an input, or of a tensor by its name, of which at least the rank is known."""
        shape = self.tensor(op.inputs[side] if isinstance(side, int) else side).shape
        if shape is None:
            raise self.unsupported_error(op, "data of unknown rank", rule="unknown-size")
        return shape

    def static_shape(self, op: Op, side: int | str = 0) -> tuple[int, ...]:
        """The shape of an input, or of a tensor by its name, in numbers; raises UnsupportedError if a size is known only at run time."""
        name = op.inputs[side] if isinstance(side, int) else side
        shape = self.tensor(name).static_shape
        if shape is None:
            raise self.unsupported_error(op, f"{name!r} of unknown size", rule="unknown-size")
        return shape

    def known_sizes(self, op: Op, sizes: Iterable[int | str], what: str) -> list[int]:
        """Sizes in numbers; raises UnsupportedError, with `what` the operator has then, if one is known only at run time."""
        found = list(sizes)
        if any(isinstance(size, str) for size in found):
            raise self.unsupported_error(op, what, rule="unknown-size")
        return [int(size) for size in found]

    def size_at(self, op: Op, axis: int) -> Any:
        """The size of the first input along an axis, a number or a node."""
        size = self.shape(op)[axis]
        return self.aten("sym_size.int", self.stored_input(op), axis) if isinstance(size, str) else size

    def finish_program(self) -> None:
        """Sets the outputs of the program, and drops nodes that they do not depend on."""
        self.outputs = [self.output_node(name) for name in self.graph.outputs]
        self.nodes = find_needed_nodes(self.nodes, self.outputs)

    def take_input(self, name: str) -> Node:
        """Adds an input of the program."""
        self.dtype(self.graph[name].dtype)
        wanted = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
        node = self._add_node("", name=wanted if wanted[:1].isalpha() else f"input_{wanted}")
        self._values[name] = node
        self.names[node] = name
        return node


def along_axis(values: Array, axis: int | None, rank: int | None) -> Array:
    """A list of numbers, so that it broadcasts along one axis of a tensor."""
    return values.reshape([-1 if place == axis else 1 for place in range(rank or 0)])


def _number_or_buffer(b: Builder, tensor: Tensor, values: Array, hint: str) -> float | Node:
    """The one number of a scale or zero point, or the buffer of those along an axis of a tensor."""
    axis = tensor.require_quantization().axis
    return values[0].item() if axis is None else b.buffer(along_axis(values, axis, tensor.rank), f"{tensor.name}/{hint}")


def _quantize_exactly(b: Builder, node: Node, tensor: Tensor) -> Node:
    """Adds a rounding of float values in float64 to the quantization of `tensor`, by its own scale and not by the reciprocal."""
    quantization = tensor.require_quantization()
    low, high = b.limits(tensor)
    b.note_operator()
    scale = _number_or_buffer(b, tensor, quantization.scale.astype(np.float64), "exact")
    points = quantization.zero_point if quantization.axis is None else quantization.zero_point.astype(np.float64)
    point = _number_or_buffer(b, tensor, points, "exact")
    steps = b.aten("round", node / scale)
    shifted = steps + point if quantization.zero_point.any() else steps
    return b.cast(b.aten("clamp", shifted, float(low), float(high)), tensor.dtype)


def _quantize_floats(b: Builder, node: Node, tensor: Tensor) -> Node:
    """Adds a rounding of float values to floats of 8 bits, decomposed like the reverse, _dequantize_floats().

    The division is in float32, as in onnxruntime's QuantizeLinear: PyTorch would round float64 twice, to float32 first.
    """
    quantization = tensor.require_quantization()
    if quantization.block_size:
        raise UnsupportedError(
            f"scales of {tensor.dtype} in blocks cannot be written for PyTorch", where=f"tensor {tensor.name!r}",
            rule="quantization-not-writable",
        )  # fmt: skip
    b.note_operator()
    low, high = quantization.limits(tensor.dtype)
    scale = _number_or_buffer(b, tensor, quantization.scale.astype(np.float32), "scale")
    steps = (b.cast(node, "float32") if b.wide else node) / scale
    return b.cast(b.aten("clamp", steps, float(low), float(high)), tensor.dtype)


def _dequantize_floats(b: Builder, node: Node, tensor: Tensor) -> Node:
    """Adds float values of floats of 8 bits with scales, decomposed: PyTorch's operators take integers alone."""
    wide, quantization = "float64" if b.wide else "float32", tensor.require_quantization()
    b.note_operator()
    real, axis = b.cast(node, wide), quantization.axis
    if axis is None or not quantization.block_size:
        return real * _number_or_buffer(b, tensor, quantization.scale.astype(wide), "scale")
    shape, parts = _divide_axis(tensor, axis, quantization.block_size)
    scales = b.buffer(np.expand_dims(quantization.scale.astype(wide), axis + 1), f"{tensor.name}/scale")
    return b.aten("reshape", b.aten("reshape", real, parts) * scales, shape)


def _divide_axis(tensor: Tensor, axis: int, size: int) -> tuple[list[int], list[int]]:
    """The shape of a tensor, and that with one axis as two: of blocks, and of the elements in a block."""
    shape = tensor.static_shape
    if shape is None or shape[axis] % size:
        raise UnsupportedError(
            "blocks that do not divide an axis cannot be written for PyTorch", where=f"tensor {tensor.name!r}", rule="blocks-do-not-fit"
        )
    return list(shape), [*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :]]


def _dequantize_blocks(b: Builder, node: Node, tensor: Tensor) -> Node:
    """Adds float values of integers with a scale for each block: by PyTorch's operator for groups of rows, else decomposed."""
    quantization = tensor.require_quantization()
    axis = quantization.axis or 0
    shape, parts = _divide_axis(tensor, axis, quantization.block_size)
    values = [(quantization.scale.astype(np.float32), "scale"), (quantization.zero_point.astype(np.int32), "zero_point")]
    scales, points = (b.buffer(data, f"{tensor.name}/{hint}") for data, hint in values)
    if len(shape) == 2 and axis == 1 and quantization.block_size > 1:
        operator = "quantized_decomposed.dequantize_per_channel_group"
        numbers = (*b.limits(tensor), b.dtype(tensor.dtype), quantization.block_size)
        return b.call(operator, node, scales, points, *numbers, b.dtype("float32"))
    real = b.aten("reshape", b.cast(node, "float32"), parts)
    steps = real - b.aten("unsqueeze", points, axis + 1)
    return b.aten("reshape", steps * b.aten("unsqueeze", scales, axis + 1), shape)


def _dequantize_exactly(b: Builder, node: Node, tensor: Tensor) -> Node:
    """Adds float values in float64 of integers with scales along an axis."""
    real, quantization = b.cast(node, "float64"), tensor.require_quantization()
    if quantization.zero_point.any():
        real = real - _number_or_buffer(b, tensor, quantization.zero_point.astype(np.float64), "zero_points")
    return real * _number_or_buffer(b, tensor, quantization.scale.astype(np.float64), "scales")


WriteFunction = Callable[[Op, Builder], None]


def with_note(write: WriteFunction) -> WriteFunction:
    """The write function of operators that a reader recognizes only by a note."""

    def write_with_note(op: Op, b: Builder) -> None:
        b.note_operator()
        write(op, b)

    return write_with_note
