"""The QONNX form: a graph in float, with a Quant wherever the quantized graph rounds to a quantization.

Every quantized tensor becomes the float values of its integers. Data movement stays as it is. An operator that computes gets a Quant after
it. Constants become float values, and a Quant restores their integers. Inputs and outputs of the graph keep their integers, with a
DequantizeLinear or a QuantizeLinear; so do the few operators that compute on stored integers as numbers.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.formats.onnx.proto import make_node
from qconvert.formats.onnx.qonnx.nodes import Range, range_of
from qconvert.formats.onnx.signatures import QONNX
from qconvert.graph import Array, Attribute, Graph, Op, Quantization, Tensor, drop_keys, integer_range
from qconvert.graph.activations import clip_range, is_exact
from qconvert.operators import kind_of

_VERSION = 1


def as_qonnx(graph: Graph) -> Graph:
    """The graph in QONNX's form; itself if nothing in it is quantized."""
    if not any(tensor.is_quantized for tensor in graph.tensors.values()):
        return graph
    return _Writer(graph).result()


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._readers = graph.consumers()
        self._tensors: dict[str, Tensor] = {}
        self._names = graph.names(self._tensors)
        self._ops: list[Op] = []
        self._real: dict[str, str] = {}  # quantized tensor, or a Dequantize's result -> the float values in its place
        self._stored: dict[str, str] = {}  # quantized tensor -> its integers, where somebody needs them
        self._ranges: dict[str, tuple[int, int]] = {}  # quantized tensor -> the integers that the one Clip after it leaves
        self._parameters: dict[tuple[str, bytes], str] = {}
        versions = [int(op["version"]) for op in graph.of_kind("Opaque") if op["domain"] == QONNX]
        self._version = next(iter(versions), _VERSION)

    def result(self) -> Graph:
        for name in self._graph.inputs:
            self._dequantize_stored(name)
        for op in self._graph.ops:
            self._visit(op)
        for name in self._graph.outputs:
            tensor = self._graph[name]
            if tensor.is_quantized and not tensor.is_constant and self._stored.get(name) != name:
                self._ops.append(Op("Quantize", (self._real[name],), (name,)))
        return self._graph.evolve(tensors=self._tensors.values(), ops=self._ops)

    def _visit(self, op: Op) -> None:
        rule = kind_of(op).rule
        if not any(name and self._graph[name].is_quantized for name in op.names):
            self._ops.append(op.with_names(self._real))
        elif rule == "convert" and self._graph[op.outputs[0]].is_quantized:
            self._round(self._value(op.inputs[0]), op.outputs[0], op)
        elif rule == "convert":
            self._dequantize(op)
        elif op.inputs and op.inputs[0] in self._ranges:  # whose one reader is a Clip that leaves no more than the range
            self._real[op.outputs[0]] = self._real[op.inputs[0]]
        elif rule in ("real", "move", "index"):
            self._compute(op)
        else:
            self._on_integers(op)

    def _dequantize(self, op: Op) -> None:
        """The float values are there already; an output of the graph gets them under its own name."""
        value, result = self._value(op.inputs[0]), self._graph[op.outputs[0]]
        if result.dtype != "float32":
            self._ops.append(op.derive("Cast", (value,), op.outputs, to=result.dtype))
        elif result.name in self._graph.public:
            self._ops.append(op.derive("Identity", (value,), op.outputs))
        else:
            self._real[result.name] = value

    def _compute(self, op: Op) -> None:
        """The operator in float, with a Quant after each quantized result that it computes."""
        attributes = drop_keys(op.attributes, "arithmetic")
        moves = kind_of(op).rule == "move"
        outputs, rounded = [], []
        for name in op.outputs:
            tensor = self._graph[name] if name else None
            if tensor is None or not tensor.is_quantized:
                outputs.append(name)
                continue
            outputs.append(self._add(f"{name}/real" if name in self._graph.outputs or not moves else name, tensor))
            if moves:
                self._real[name] = outputs[-1]
            else:
                rounded.append((outputs[-1], name))
        self._ops.append(replace(op, inputs=tuple(self._value(name) for name in op.inputs), outputs=tuple(outputs), attributes=attributes))
        for value, name in rounded:
            self._round(value, name, op)

    def _on_integers(self, op: Op) -> None:
        """An operator that takes stored integers for numbers, between QuantizeLinear and DequantizeLinear."""
        inputs = []
        for name in op.inputs:
            tensor = self._graph[name] if name else None
            if tensor is None or not tensor.is_quantized or tensor.is_constant:
                inputs.append(self._real.get(name, name))
                continue
            if name not in self._stored:
                self._stored[name] = self._names.fresh(f"{name}/integers")
                self._tensors[self._stored[name]] = replace(tensor, name=self._stored[name])
                self._ops.append(op.derive("Quantize", (self._real[name],), (self._stored[name],)))
            inputs.append(self._stored[name])
        self._ops.append(replace(op, inputs=tuple(inputs)))
        for name in op.outputs:
            self._dequantize_stored(name, op.source)

    def _dequantize_stored(self, name: str, source: str = "") -> None:
        """Adds the float values of a quantized tensor whose integers are there."""
        if name and self._graph[name].is_quantized:
            self._stored[name] = name
            self._real[name] = self._add(f"{name}/real", self._graph[name])
            self._ops.append(Op("Dequantize", (name,), (self._real[name],), {}, source))

    def _value(self, name: str) -> str:
        """The float values of a tensor; those of a quantized constant are put after a Quant when first asked for."""
        tensor = self._graph.tensors.get(name)
        if tensor is None or name in self._real or not tensor.is_quantized:
            return self._real.get(name, name)
        assert tensor.data is not None and tensor.quantization is not None
        self._real[name] = self._constant(tensor, tensor.data, tensor.quantization)
        return self._real[name]

    def _constant(self, tensor: Tensor, data: Array, quantization: Quantization) -> str:
        real = dequantize(data, quantization).astype(np.float32)
        if quantization.block_size or tensor.dtype.startswith("float"):  # no scale broadcasts so
            return self._add(f"{tensor.name}/real", tensor, real)
        found = range_of(quantization.limits(tensor.dtype), quantization)
        result = self._add(f"{tensor.name}/quantized", tensor)
        if found is None or not np.array_equal(quantize(real, quantization, tensor.dtype), data):
            self._ops.append(Op("Dequantize", (tensor.name,), (result,)))
            return result
        name = self._add(tensor.name if tensor.name not in self._graph.public else f"{tensor.name}/real", tensor, real)
        self._quant(name, result, tensor, quantization, found)
        return result

    def _round(self, value: str, name: str, op: Op) -> None:
        """A float value with the quantization of the quantized tensor `name`; bits tell where one Clip after it leaves fewer integers."""
        tensor = self._graph[name]
        quantization = tensor.quantization
        assert quantization is not None
        self._real[name] = self._add(f"{name}/real" if name in self._graph.outputs else name, tensor)
        clipped = self._find_clip_range(tensor)
        found = range_of(clipped, quantization) if clipped is not None else None
        if found is not None and clipped is not None:
            self._ranges[name] = clipped
        else:
            found = (
                range_of(integer_range(tensor.dtype), quantization)
                if not tensor.dtype.startswith("float") and not quantization.block_size
                else None
            )
        if found is None:
            stored = self._names.fresh(f"{name}/integers")
            self._tensors[stored] = replace(tensor, name=stored)
            self._ops += [op.derive("Quantize", (value,), (stored,)), Op("Dequantize", (stored,), (self._real[name],))]
        else:
            self._quant(value, self._real[name], tensor, quantization, found, op.source)

    def _find_clip_range(self, tensor: Tensor) -> tuple[int, int] | None:
        """The integers that a Clip leaves which alone reads a tensor; None without one."""
        readers = self._readers.get(tensor.name, [])
        if len(readers) != 1 or readers[0].kind != "Clip" or tensor.name in self._graph.public:
            return None
        (op,) = readers
        q = tensor.quantization
        if (
            q is None
            or not q.is_per_tensor
            or not tensor.shares_quantization(self._graph[op.outputs[0]])
            or op.outputs[0] in self._graph.outputs
        ):
            return None
        limits = kind_of(op).limits(op, self._graph.constant)
        return clip_range(tensor, limits) if limits is not None and is_exact(limits, tensor) else None

    def _quant(self, value: str, result: str, tensor: Tensor, quantization: Quantization, found: Range, source: str = "") -> None:
        shape = [1] * (tensor.rank or 0)
        if quantization.axis is not None:
            shape[quantization.axis] = -1
        points = (quantization.zero_point + found.offset).astype(np.float32)
        sizes: Sequence[int] = shape if quantization.axis is not None else ()
        inputs = [
            value,
            self._parameter(f"{tensor.name}/scale", quantization.scale.reshape(sizes)),
            self._parameter(f"{tensor.name}/zero_point", points.reshape(sizes) if points.any() else np.zeros((), np.float32)),
            self._parameter("bits", np.array(found.bits, np.float32)),
        ]
        attributes: dict[str, Attribute] = {"format": "onnx", "domain": QONNX, "op_type": "Quant", "version": self._version}
        node = make_node("Quant", (), (), domain=QONNX, signed=int(found.signed), narrow=int(found.narrow), rounding_mode="ROUND")
        payload = base64.b64encode(node.SerializeToString()).decode("ascii")
        self._ops.append(Op("Opaque", tuple(inputs), (result,), {**attributes, "payload": payload, "captures": ()}, source))

    def _parameter(self, wanted: str, data: Array) -> str:
        key = wanted, data.tobytes()
        if key not in self._parameters:
            name = self._parameters[key] = self._names.fresh(wanted)
            self._tensors[name] = Tensor(name, "float32", data.shape, np.asarray(data, np.float32))
        return self._parameters[key]

    def _add(self, name: str, like: Tensor, data: Array | None = None) -> str:
        """A tensor of float values in the shape of another; under that one's name, or a new one."""
        name = name if name == like.name else self._names.fresh(name)
        self._tensors[name] = Tensor(name, "float32", like.shape, data)
        return name
