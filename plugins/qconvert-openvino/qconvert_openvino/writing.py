"""The model while the writer builds it, with OpenVINO's package, which infers and checks shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.plugin import (
    KINDS,
    Array,
    Graph,
    NotedTensor,
    Op,
    Quantization,
    Tensor,
    UnsupportedError,
    integer_range,
    numpy_dtype,
    runtime_package,
)
from qconvert_openvino.container import Notes
from qconvert_openvino.elements import TYPES, bytes_of
from qconvert_openvino.ranges import quantization_of, ranges_of

#: Storage types that FakeQuantize has levels for.
GRIDS = ("int4", "uint4", "int8", "uint8", "int16", "uint16")


class Writing:
    """The model while it grows.

    Args:
        graph: what is written, with spatial operators that are channels_first.

    Attributes:
        op: OpenVINO's operators, opset13.
        values: tensor -> the output with its float values, or its plain numbers.
        unrounded: tensor -> the input of its FakeQuantize.
        parameters: input of the graph -> its output in the model.
        notes: of quantizations that FakeQuantize does not determine.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.ov = graph, runtime_package("openvino", "openvino", "writes OpenVINO models")
        from openvino import opset13

        self.op: Any = opset13
        self._functions = {name.replace("_", ""): function for name, function in vars(opset13).items()}
        self.values: dict[str, Any] = {}
        self.unrounded: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {}
        self.notes = Notes()
        self._taken: set[str] = set()

    def create(self, layer: str, *arguments: Any) -> Any:
        """Return a layer by its type: its function in OpenVINO's package has the same name, with underscores and without capitals."""
        return self._functions[layer.lower()](*arguments)

    # constants

    def numbers(self, values: Sequence[int]) -> Any:
        """Return a constant of int64."""
        return self.op.constant(np.array(values, np.int64))

    def array(self, data: Array, dtype: str, name: str = "") -> Any:
        """Return a constant of any type, with the name of its tensor."""
        found = self._array(data, dtype)
        if name:
            found.set_friendly_name(name)
        return found

    def _array(self, data: Array, dtype: str) -> Any:
        own = TYPES.get(dtype)
        if own is None:
            raise UnsupportedError(f"constants of {dtype} cannot be written", rule="dtype-not-writable")
        kind = getattr(self.ov.Type, own)
        if own in ("i4", "u4"):
            packed = bytes_of(data, own)
            tensor = self.ov.Tensor(packed if packed.size else np.zeros(1, np.uint8), list(data.shape), kind)
            return self.ov.op.Constant(tensor, shared_memory=False)  # a shared array would be freed
        if own in ("bf16", "f8e4m3"):  # which numpy has no types for
            stored = np.asarray(data, order="C").view(np.uint16 if own == "bf16" else np.uint8)
            return self.ov.op.Constant(self.ov.Tensor(stored, list(data.shape), kind), shared_memory=False)
        return self.op.constant(np.asarray(data, order="C"), getattr(self.ov.Type, own))

    def integers(self, tensor: Tensor, q: Quantization, data: Array, sizes: Sequence[int] = ()) -> Any:
        """Return the float values of a constant's integers: Convert, Subtract and Multiply.

        Args:
            tensor: the constant with the name and the type.
            q: its quantization, per tensor or per axis.
            data: its integers, in any shape.
            sizes: the shape of scales next to `data`; () for one scale.
        """
        found = self.op.convert(self.array(data, tensor.dtype, tensor.name), "f32")
        return self.dequantize(found, tensor.dtype, q, sizes)

    def dequantize(self, found: Any, dtype: str, q: Quantization, sizes: Sequence[int]) -> Any:
        """Add the Subtract and the Multiply that dequantize integers after a Convert."""
        shape = tuple(sizes)
        if q.zero_point.any():
            points, (low, high) = q.zero_point.reshape(shape), integer_range(dtype)
            fits = dtype in TYPES and points.min() >= low and points.max() <= high
            stored = self.array(points.astype(numpy_dtype(dtype)), dtype) if fits else None
            shift = self.op.constant(points.astype(np.float32)) if stored is None else self.op.convert(stored, "f32")
            found = self.op.subtract(found, shift)
        return self.op.multiply(found, self.op.constant(q.scale.reshape(shape)))

    def constant(self, tensor: Tensor) -> Any:
        """Return a constant tensor as float values, or as plain numbers."""
        assert tensor.data is not None
        q, data = tensor.quantization, tensor.data
        if q is None:
            return self.array(data, tensor.dtype, tensor.name)
        if q.block_size:
            return self._blocks(tensor, q)
        sizes = [-1 if axis == q.axis else 1 for axis in range(data.ndim)] if q.axis is not None else []
        return self.integers(tensor, q, data, sizes)

    def _blocks(self, tensor: Tensor, q: Quantization) -> Any:
        """Return a constant with scales in blocks: its axis split into blocks and elements, and a Reshape back."""
        data, axis = tensor.data, q.axis
        assert data is not None and axis is not None
        size, count = data.shape[axis], q.scale.shape[axis]
        if q.scale.ndim != data.ndim or size != count * q.block_size:
            raise UnsupportedError(
                f"{tensor.name!r} has blocks of {q.block_size} that do not divide its {size} elements", rule="blocks-do-not-fit"
            )
        split = (*data.shape[:axis], count, q.block_size, *data.shape[axis + 1 :])
        sizes = (*q.scale.shape[: axis + 1], 1, *q.scale.shape[axis + 1 :])
        found = self.integers(tensor, q, data.reshape(split), sizes)
        return self.op.reshape(found, self.numbers(data.shape), False)

    # values

    def value(self, name: str) -> Any:
        """Return the output with a tensor's float values, or its plain numbers."""
        if name not in self.values:
            self.values[name] = self.constant(self.graph[name]).output(0)
        return self.values[name]

    def inputs(self, op: Op) -> list[Any]:
        """Return the values of an operator's inputs, none of which is missing."""
        return [self.value(name) for name in op.inputs]

    def integers_of(self, op: Op, index: int, what: str) -> list[int]:
        """Return a constant input of integers. Raise UnsupportedError if it is computed."""
        data = self.graph.constant(op.inputs[index])
        if data is None:
            raise unsupported_error(op, f"with {what} that are computed when the model runs", rule="not-constant")
        return [int(value) for value in data.reshape(-1)]

    # results

    def finish(self, op: Op, *outputs: Any) -> None:
        """Set the results of an operator, with its activation, rounded to their quantizations if it computes float values.

        Args:
            op: the operator.
            outputs: OpenVINO's outputs, or nodes with one each, for the operator's results.
        """
        activated = [self.apply_activation(output, str(op.attributes.get("activation", ""))) for output in outputs]
        rounds = KINDS[op.kind].rounds
        for name, output in zip(op.outputs, activated, strict=True):
            if name:
                found = output.output(0) if isinstance(output, self.ov.Node) else output
                self.set_value(name, found, rounds)

    def apply_activation(self, output: Any, activation: str) -> Any:
        if not activation:
            return output
        bounds = {"relu6": (0.0, 6.0), "relu_n1_to_1": (-1.0, 1.0)}
        return self.op.relu(output) if activation == "relu" else self.op.clamp(output, *bounds[activation])

    def set_value(self, name: str, output: Any, rounds: bool) -> None:
        """Set the value of a tensor, rounded to its quantization if `rounds`."""
        tensor = self.graph[name]
        if tensor.quantization is None or not rounds:
            self.values[name] = self.set_name(output, name)
            return
        self.unrounded[name] = output
        self.values[name] = self.emit_fake_quantize(output, tensor, name)

    def set_name(self, output: Any, name: str) -> Any:
        """Give an output a name, if it has none and the name is free."""
        if not output.get_tensor().get_names() and name not in self._taken:
            self._taken.add(name)
            output.get_tensor().set_names({name})
            if output.get_node().get_output_size() == 1:
                output.get_node().set_friendly_name(name)
        return output

    def emit_fake_quantize(self, output: Any, tensor: Tensor, name: str) -> Any:
        """Return a value rounded to a tensor's quantization, named `name`."""
        q = self.quantization(tensor)
        fake, sizes = ranges_of(q, tensor.dtype), self.sizes(tensor, q)
        low, high = (self.op.constant(side.reshape(sizes)) for side in (fake.low, fake.high))
        found = self.set_name(self.op.fake_quantize(output, low, high, low, high, fake.levels).output(0), name)
        if quantization_of(fake, q.axis) != (tensor.dtype, q) or tensor.name != name:
            self.notes.quantizations[name] = NotedTensor(tensor.name, tensor.dtype, q)
        return found

    def emit_quantize(self, output: Any, tensor: Tensor) -> Any:
        """Return a value as a tensor's integers."""
        q = self.quantization(tensor)
        fake, sizes, (smallest, largest) = ranges_of(q, tensor.dtype), self.sizes(tensor, q), q.limits(tensor.dtype)
        low, high = (self.op.constant(side.reshape(sizes)) for side in (fake.low, fake.high))
        to = (self.op.constant(np.full(sizes, limit, np.float32)) for limit in (smallest, largest))
        self.notes.quantizations[tensor.name] = NotedTensor(tensor.name, tensor.dtype, q)
        return self.op.convert(self.op.fake_quantize(output, low, high, *to, fake.levels), TYPES[tensor.dtype])

    def quantization(self, tensor: Tensor) -> Quantization:
        """Return the quantization of a tensor. Raise UnsupportedError unless FakeQuantize can round to it."""
        q = tensor.quantization
        if q is None or tensor.dtype not in GRIDS or q.block_size:
            raise UnsupportedError(
                f"FakeQuantize cannot express this quantization of {tensor.dtype}",
                where=repr(tensor.name),
                rule="quantization-not-writable",
            )
        return q

    def sizes(self, tensor: Tensor, q: Quantization) -> list[int]:
        """Return the shape of scales that broadcasts with a tensor."""
        if q.axis is None:
            return []
        if tensor.shape is None:
            raise UnsupportedError("scales along an axis require data of known rank", where=repr(tensor.name), rule="unknown-rank")
        return [q.scale.size if axis == q.axis else 1 for axis in range(len(tensor.shape))]


def unsupported_error(op: Op, what: str, *, rule: str = "variant-not-writable") -> UnsupportedError:
    """Return the error for an operator that has a form in OpenVINO, but not in this variant."""
    return UnsupportedError(f"{op.kind} {what} cannot be written to OpenVINO", where=f"{op.source} {op.outputs[0]!r}".strip(), rule=rule)
