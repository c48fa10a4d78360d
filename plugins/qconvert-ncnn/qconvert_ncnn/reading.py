"""The canonical graph while the reader builds it, and a layer as the functions in ops/ see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.plugin import Array, InvalidModelError, Names, Op, Quantization, Tensor, UnsupportedError, output_shapes
from qconvert_ncnn.container import Layer
from qconvert_ncnn.notes import Notes, data_name, find_outputs
from qconvert_ncnn.quantizations import INT8, LIMIT, MOVES, inverse, is_data_quantization
from qconvert_ncnn.writing import ACTIVATIONS

#: The type of the layer with which the reader replaces the four layers of a rounding.
ROUNDING = "qconvert.Rounding"
_RELU, _LEAKY, _CLIP = 1, 2, 3


def data_quantization(inverse_scale: float) -> Quantization:
    """Return the quantization of a layer's data for the inverse scale in the file."""
    return Quantization(inverse(np.float32(inverse_scale)).reshape(1), np.zeros(1, np.int64), None, 0, -LIMIT, LIMIT)


class Draft:
    """The graph while it grows.

    Args:
        layers: of the file.
        weights: of each layer, by its place.
        wanted: blob -> the inverse scale to which all of its readers round it.
        notes: names and quantizations of blobs.

    Attributes:
        values: blob -> the tensor of its float values.
        quantizations: blob -> the inverse scale to which its values are rounded already.
        integers: dequantized tensor -> the tensor of its integers.
        given: the output blobs, in order.
        origins: blob of a Split -> the blob that it splits.
        entered: blob of an input -> its tensor.
        returned: output blob that is an unchanged input -> the input.
    """

    def __init__(self, layers: Sequence[Layer], weights: Sequence[tuple[Array, ...]], wanted: dict[str, float], notes: Notes) -> None:
        self.layers, self.weights, self.wanted, self.notes = layers, weights, wanted, notes
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.values: dict[str, str] = {}
        self.quantizations: dict[str, float] = {}
        self.origins: dict[str, str] = {}
        self.integers: dict[str, str] = {}
        self.given = find_outputs(layers, notes)
        self.entered: dict[str, str] = {}
        self.returned: dict[str, str] = {}
        self.names = Names(self.tensors, {name for layer in layers for name in layer.outputs})

    def add(
        self, wanted: str, dtype: str, shape: Any, data: Array | None = None, q: Quantization | None = None, *, own: bool = False
    ) -> str:
        """Add a tensor; return its name: `wanted` if free; only with `own` it may be the name of a blob."""
        name = wanted if own and wanted not in self.tensors else self.names.fresh(wanted)
        self.tensors[name] = Tensor(name, dtype, shape, data, q)
        return name

    def emit(self, op: Op) -> None:
        """Add an operator, and the shapes of its results."""
        shapes = output_shapes(self.tensors, op)
        for name, shape in zip(op.outputs, shapes, strict=True):
            if shape is not None and 0 in shape:
                raise InvalidModelError(f"the shape of {name!r} is {shape}, which has no elements", where=op.source, rule="empty-result")
            old = self.tensors[name]
            self.tensors[name] = Tensor(name, old.dtype, shape, None, old.quantization)
        self.ops.append(op)

    def emit_rounding(self, real: str, stored: str, dtype: str, q: Quantization, source: str) -> str:
        """Add Quantize and Dequantize after a tensor of float values; return the rounded values."""
        integers = self.add(stored, dtype, None, None, q)
        self.emit(Op("Quantize", (real,), (integers,), {}, source))
        return self.emit_dequantize(integers, source)

    def emit_dequantize(self, integers: str, source: str, name: str = "") -> str:
        """Add a Dequantize; return its result, named `name` if given."""
        values = self.add(name or f"{integers}/value", "float32", None, own=bool(name))
        self.emit(Op("Dequantize", (integers,), (values,), {}, source))
        self.integers[values] = integers
        return values

    def round(self, blob: str, inverse_scale: float, source: str) -> None:
        """Round a blob's values to the quantization of int8 layers' data, with the noted limits."""
        q, noted = data_quantization(inverse_scale), self.notes.quantizations.get(blob)
        if noted is not None and is_data_quantization(noted.dtype, noted.quantization) and noted.quantization.scale == q.scale:
            q = noted.quantization
        self.values[blob] = self.emit_rounding(self.values[blob], data_name(blob), INT8, q, source)
        self.quantizations[blob] = inverse_scale


class Reading:
    """A layer while it is read.

    Args:
        draft: the graph.
        index: the layer's place in the file.
    """

    def __init__(self, draft: Draft, index: int) -> None:
        self.draft, self.layer, self.weights = draft, draft.layers[index], draft.weights[index]

    # inputs

    def value(self, index: int = 0) -> str:
        """Return the tensor of an input's float values."""
        if index >= len(self.layer.inputs):
            raise self.layer.invalid(f"input {index} is missing", rule="input-missing")
        return self.draft.values[self.layer.inputs[index]]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an input, with the batch dimension of 1."""
        found = self.draft.tensors[self.value(index)].static_shape
        assert found is not None  # every Input has static sizes, and shape inference keeps them static
        return found

    def round_input(self, inverse_scale: float) -> str:
        """Return the first input's values, rounded to the quantization of an int8 layer."""
        value, blob = self.value(), self.draft.origins.get(self.layer.inputs[0], self.layer.inputs[0])
        if self.draft.quantizations.get(blob) == inverse_scale:
            return value
        return self.draft.emit_rounding(value, data_name(blob), INT8, data_quantization(inverse_scale), str(self.layer))

    def axis(self, key: int, default: int = 0) -> int:
        """Return the axis of the tensor for a parameter that is an axis of the first input's blob."""
        rank, found = len(self.shape()) - 1, self.layer.integer(key, default)
        if not -rank <= found < rank:
            raise self.layer.invalid(f"the axis is {found} of {rank}", rule="axis-out-of-range")
        return found % rank + 1

    def parameter(self, data: Array, name: str) -> str:
        """Add a constant."""
        return self.draft.add(f"{self.layer.name}/{name}", data.dtype.name, data.shape, data)

    def numbers(self, values: Iterable[int]) -> str:
        """Add a constant of int64."""
        return self.parameter(np.array(list(values), np.int64), "index")

    def scalar(self, value: float) -> str:
        return self.parameter(np.array(value, np.float32), "value")

    def dequantize_weights(self, data: Array, scales: Array, axis: int) -> str:
        """Add int8 weights, per channel along an axis or per tensor, and a Dequantize; return its result."""
        q = Quantization(inverse(scales), np.zeros(scales.shape, np.int64), axis if scales.size > 1 else None)
        stored = self.draft.add(f"{self.layer.name}/weights", INT8, data.shape, data, q)
        return self.step("Dequantize", [stored])

    # results

    def step(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add an intermediate operator; return its result."""
        name = self.draft.add(f"{self.layer.name}/{kind.lower()}", "float32", None)
        self.draft.emit(Op(kind, tuple(inputs), (name,), attributes, str(self.layer)))
        return name

    def emit(self, kind: str, inputs: Sequence[str], **attributes: Any) -> None:
        """Add the operator of the layer's results, and the rounding that all of their readers do."""
        self.emit_rounded(kind, inputs, 0.0, attributes)

    def emit_rounded(self, kind: str, inputs: Sequence[str], top: float, attributes: Mapping[str, Any]) -> None:
        """As emit(), with the inverse scale `top` to which the layer rounds its result; 0 for a float result."""
        names = [self.draft.add(blob, "float32", None, own=True) for blob in self.layer.outputs]
        self.draft.emit(Op(kind, tuple(inputs), tuple(names), dict(attributes), str(self.layer)))
        moved = self._moved_integers(kind, inputs)
        for name in names:
            self.draft.values[name] = name
            if name in self.draft.given and name not in self.draft.notes.quantizations:
                continue  # float values under their own name
            if moved is not None and moved.quantization is not None:
                stored = f"{name}/{moved.dtype}"
                self.draft.values[name] = self.draft.emit_rounding(name, stored, moved.dtype, moved.quantization, str(self.layer))
                if all(blob in self.draft.quantizations for blob in self.layer.inputs):
                    self.draft.quantizations[name] = self.draft.quantizations[self.layer.inputs[0]]
                continue
            quantization = top or self.draft.wanted.get(name, 0.0)
            if quantization:
                self.draft.round(name, quantization, str(self.layer))

    def _moved_integers(self, kind: str, inputs: Sequence[str]) -> Tensor | None:
        """Return the integers of data movement, so that its results get the same quantization; None for other operators."""
        names = [name for name in inputs if name and self.draft.tensors[name].dtype == "float32"]
        found = [self.draft.tensors[self.draft.integers[name]] for name in names if name in self.draft.integers]
        if kind not in MOVES or not found or len(found) < len(names):
            return None
        return found[0] if all(item.shares_quantization(found[0]) for item in found) else None

    def apply_activation(self, value: str) -> str:
        """Add the activation of the layer's parameters 9 and 10 as operators, where activation() returns None."""
        kind, numbers = self.layer.integer(9), [float(number) for number in self.layer.numbers(10)]
        if kind == _LEAKY and len(numbers) == 1:
            return self.step("LeakyRelu", [value], alpha=numbers[0])
        if kind == _CLIP and len(numbers) == 2:
            return self.step("Clip", [value, *(self.scalar(number) for number in numbers)])
        named = {4: "Sigmoid", 5: "Mish"}.get(kind)
        if named:
            return self.step(named, [value])
        if kind == 6 and len(numbers) == 2:
            return self.step("Mul", [value, self.step("HardSigmoid", [value], alpha=numbers[0], beta=numbers[1])])
        raise self.unsupported_error(f"with the activation {kind} {numbers}")

    def activation(self) -> str | None:
        """Return the canonical activation of the layer, "" without one, or None for one that needs operators."""
        kind, numbers = self.layer.integer(9), tuple(float(number) for number in self.layer.numbers(10))
        if not kind:
            return ""
        if kind == _RELU:
            return "relu"
        return next((name for name, bounds in ACTIVATIONS.items() if kind == _CLIP and numbers == bounds), None)

    def unsupported_error(self, what: str, *, rule: str = "variant-not-covered") -> UnsupportedError:
        return UnsupportedError(f"{self.layer.kind} {what} is not covered", where=str(self.layer), rule=rule)
