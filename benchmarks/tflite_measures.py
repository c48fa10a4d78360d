"""What a .tflite file made from a .onnx file is: its operators by type, and its outputs compared with those of onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measures import SAME_STEP, Array, Fidelity, Port, SourceModel, in_layout, matching, stored

from qconvert import Graph, QConvertError, Tensor, load
from qconvert.runtimes.onnxruntime import OnnxRuntime

#: The operators that carry a quantized network, whose integer kernels are the point of it. A GlobalAveragePool becomes a MEAN.
COUNTED = (
    "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL", "ADD", "MUL", "AVERAGE_POOL_2D", "MAX_POOL_2D",
    "MEAN",
)  # fmt: skip
_INTEGERS = ("INT4", "INT8", "UINT8", "INT16")
_FLOATS = ("FLOAT16", "FLOAT32", "FLOAT64")
#: Plain floats are equal up to this share of the output's range: kernels add in another order.
_SAME_FLOAT = 1e-6


@dataclass(frozen=True)
class Census:
    """The operators of a .tflite file.

    Attributes:
        integer: those of COUNTED whose activations are all integers.
        floating: those of any kind that take or give floats, but for the following.
        boundary: QUANTIZE and DEQUANTIZE.
        total: all.
    """

    integer: int
    floating: int
    boundary: int
    total: int


def census(path: Path) -> Census:
    """Counts the operators of every subgraph."""
    found = list(_operators(path.read_bytes()))
    inner = [(name, types) for name, types in found if name not in ("QUANTIZE", "DEQUANTIZE")]
    integer = sum(name in COUNTED and bool(types) and all(kind in _INTEGERS for kind in types) for name, types in inner)
    floating = sum(any(kind in _FLOATS for kind in types) for _, types in inner)
    return Census(integer, floating, len(found) - len(inner), len(found))


def _operators(data: bytes) -> Iterator[tuple[str, list[str]]]:
    """(name, types of the activations in and out) of each operator; constants and shapes are no activations."""
    from ai_edge_litert import schema_py_generated as schema

    names = {number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)}
    types = {number: name for name, number in vars(schema.TensorType).items() if isinstance(number, int)}
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    for subgraph in model.subgraphs:
        for op in subgraph.operators:
            code = model.operatorCodes[op.opcodeIndex]
            tensors = [subgraph.tensors[i] for i in [*op.inputs, *op.outputs] if i >= 0]
            used = [types[tensor.type] for tensor in tensors if not _has_data(model.buffers[tensor.buffer])]
            yield names[max(code.builtinCode, code.deprecatedBuiltinCode)], [name for name in used if name in _INTEGERS + _FLOATS]


def _has_data(buffer: Any) -> bool:
    return buffer.data is not None and len(buffer.data) > 0


class OnnxReference:
    """A .onnx file in onnxruntime, with what its integers mean.

    Args:
        path: the file.

    Attributes:
        inputs, outputs: name -> Port. The scale of a float one is that of the quantization that it comes from or goes to; 0 if there is
            none.
        optimized: whether onnxruntime takes the model with its optimizations, as users run it; without them otherwise.

    Raises:
        QConvertError: onnxruntime takes the model in neither way.
    """

    def __init__(self, path: Path) -> None:
        self.optimized = True
        self._plain = OnnxRuntime(path, optimize=False)
        try:
            self._runtime = OnnxRuntime(path)
        except QConvertError:
            self._runtime, self.optimized = self._plain, False
        try:
            graph: Graph | None = load(path)
        except QConvertError:
            graph = None
        self.inputs = {name: _port(graph, name, dtype, shape, True) for name, (dtype, shape) in self._runtime.inputs.items()}
        self.outputs = {name: _port(graph, name, dtype, shape, False) for name, (dtype, shape) in self._runtime.outputs.items()}

    def run(self, values: list[Array], optimize: bool = True) -> list[Array]:
        """Runs once on stored values, in order, with onnxruntime's optimizations or without."""
        runtime = self._runtime if optimize else self._plain
        return list(runtime.run(dict(zip(self.inputs, values, strict=True))).values())

    def random_inputs(self, samples: int, seed: int = 0) -> list[list[Array]]:
        """Values for each input, uniform over the range of the integers; over that of the quantization, or [-1, 1), for floats."""
        rng = np.random.default_rng(seed)

        def draw(port: Port) -> Array:
            shape = [size or 1 for size in port.shape]
            if np.dtype(port.dtype).kind in "iu":
                info = np.iinfo(port.dtype)
                return rng.integers(info.min, info.max, shape, dtype=port.dtype, endpoint=True)
            low = -port.scale * port.zero_point if port.scale else -1.0
            return rng.uniform(low, low + port.scale * 255 if port.scale else 1.0, shape).astype(port.dtype)

        return [[draw(port) for port in self.inputs.values()] for _ in range(samples)]


def _port(graph: Graph | None, name: str, dtype: str, shape: tuple[Any, ...], is_input: bool) -> Port:
    sizes = tuple(size if isinstance(size, int) else None for size in shape)
    tensor = None if graph is None else _on_the_quantization(graph, name, is_input)
    if tensor is None or tensor.quantization is None or not tensor.quantization.is_per_tensor:
        return Port(dtype, sizes)
    scale, zero_point = float(tensor.quantization.scale.flat[0]), int(tensor.quantization.zero_point.flat[0])
    # A zero point is counted from the smallest integer where the port is a float: its type is then nobody's concern.
    return Port(dtype, sizes, scale, zero_point - (np.iinfo(tensor.dtype).min if dtype.startswith("float") else 0))


def _on_the_quantization(graph: Graph, name: str, is_input: bool) -> Tensor | None:
    """The quantized tensor that a graph's input or output is, or is quantized to or dequantized from."""
    if name not in graph.tensors or graph[name].quantization is not None:
        return graph.tensors.get(name)
    if is_input:
        return next((graph[op.outputs[0]] for op in graph.ops if op.kind == "Quantize" and op.inputs[0] == name), None)
    return next((graph[op.inputs[0]] for op in graph.ops if op.kind == "Dequantize" and op.outputs[0] == name), None)


class TfliteResult(SourceModel):
    """A .tflite file in LiteRT that stands for a .onnx one: inputs and outputs are matched by name, else by position or shape.

    Args:
        data: the file's content.
        reference: what it was made from.

    Raises:
        ValueError, RuntimeError: LiteRT does not take the model, or its inputs and outputs are others.
    """

    def __init__(self, data: bytes, reference: OnnxReference) -> None:
        super().__init__(data)
        self._reference = reference
        names = [
            [item["name"] for item in items] for items in (self._interpreter.get_input_details(), self._interpreter.get_output_details())
        ]
        self._input_order = _order(reference.inputs, names[0], [port.shape for port in self.inputs])
        self._output_order = _order(reference.outputs, names[1], [port.shape for port in self.outputs])

    def feeds(self, values: list[Array]) -> list[Array]:
        """The reference's inputs as this model takes them: in its order, layout and types."""
        result: list[Array] = [np.empty(0)] * len(values)
        for i, value, port in zip(self._input_order, values, self._reference.inputs.values(), strict=True):
            own = self.inputs[i]
            if value.dtype.kind == "f" and own.dtype != value.dtype.name and own.scale:
                info = np.iinfo(own.dtype)
                value = np.clip(np.rint(value / own.scale) + own.zero_point, info.min, info.max).astype(own.dtype)
            result[i] = np.ascontiguousarray(in_layout(stored(value, port, own.dtype), own.shape, (0, 2, 3, 1)))
        return result

    def run_like(self, values: list[Array]) -> list[tuple[Array, Port]]:
        """Runs once on the reference's inputs; outputs in the reference's order and layout, each with what its integers mean."""
        outputs = self.run(self.feeds(values))
        shapes = [port.shape for port in self._reference.outputs.values()]
        return [(in_layout(outputs[i], shape, (0, 3, 1, 2)), self.outputs[i]) for i, shape in zip(self._output_order, shapes, strict=True)]


def _order(wanted: dict[str, Port], names: list[str], shapes: list[tuple[int | None, ...]]) -> list[int]:
    if sorted(wanted) == sorted(names):
        return [names.index(name) for name in wanted]
    return matching([port.shape for port in wanted.values()], shapes)


def compare(reference: OnnxReference, result: TfliteResult, inputs: list[list[Array]], optimize: bool = True) -> Fidelity:
    """Runs both on each sample and compares every output element."""
    equal = total = 0
    worst: dict[str, float] = {}
    for values in inputs:
        found = zip(reference.outputs.values(), reference.run(values, optimize), result.run_like(values), strict=True)
        for port, a, (b, own) in found:
            if a.shape != b.shape:
                raise ValueError(f"an output of the shape {b.shape} in place of {a.shape}")
            same, largest = difference(a, b, port, own)
            kind = "lsb" if port.scale or a.dtype.kind != "f" else "range"
            equal, total, worst[kind] = equal + same, total + a.size, max(worst.get(kind, 0.0), largest)
    return Fidelity(equal / max(total, 1), worst.get("lsb"), worst.get("range"))


def difference(reference: Array, result: Array, port: Port, own: Port) -> tuple[int, float]:
    """(number of equal elements, largest difference) of one output: in steps of the reference's scale, or as a share of its range.

    Args:
        reference, result: of one shape; the result's integers may be of another type, or stand for floats.
        port: what the reference's values mean.
        own: what the result's values mean.
    """
    a, b = reference.astype(np.float64), result.astype(np.float64)
    tolerance = 0.0
    if reference.dtype.kind == "f":
        b = (b - own.zero_point) * own.scale if result.dtype.kind in "iu" and own.scale else b
        spread = float(np.ptp(a[np.isfinite(a)])) if np.isfinite(a).any() else 0.0
        tolerance, unit = (SAME_STEP, port.scale) if port.scale else (_SAME_FLOAT, spread or 1.0)
        steps = (b - a) / unit
    elif result.dtype.kind == "f" and port.scale:
        tolerance, steps = SAME_STEP, b / port.scale + port.zero_point - a
    else:
        shift = np.iinfo(reference.dtype).min - np.iinfo(result.dtype).min if port.scale and result.dtype != reference.dtype else 0
        steps = b + shift - a
    sizes = np.nan_to_num(np.abs(np.where((a == b) & (reference.dtype == result.dtype), 0.0, steps)), nan=np.inf)
    return int((sizes <= tolerance).sum()), float(sizes.max(initial=0.0))
