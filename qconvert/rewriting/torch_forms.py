"""Averages, interpolations and first roundings of data as PyTorch's engines round them, in operators that every runtime rounds alike.

An average of an even number of integers often is a tie, which each kernel rounds in its own way. As a convolution with weights of ones it
is an exact sum that is multiplied once and rounded to even. Where PyTorch takes ties by the stored integers, and not by the steps from the
zero point, the convolution sees the data with a quantization with zero point 0. An average of an odd number is never near a tie. First
roundings are those of torch.quantize_per_tensor. What PyTorch computes as one fused sum is exact in float64, which ONNX has: four more
operators. TFLite has no arithmetic in float64, so there the product is split in two (arithmetic/torch_kernels.py). With zero point 0 a
product in float32 is the same; so it is for PyTorch's product with a reciprocal, which LiteRT's own operator computes too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import FLOAT_MEAN, SplitProduct, split_product
from qconvert.arithmetic.storage import Array, Quantization, integer_range
from qconvert.graph.schema import Graph, Op, Shape, Tensor
from qconvert.kernels.torch_forms import Window, find_average_form, has_quantize_form, has_torch_form, place_of_channels
from qconvert.operators import kind_of
from qconvert.operators.sizes import reshape_sizes
from qconvert.rewriting.parts import trace_back
from qconvert.rewriting.rewriter import Rewriter

#: Adds a tensor to the graph; gives its name, which is after that of the result.
Add = Callable[[Tensor, str], str]


def quantize_form(tensors: Mapping[str, Tensor], op: Op, runtime: str, add: Add) -> tuple[list[Op], int] | None:
    """Return the operators in place of a Quantize, and how many of all float32 numbers still round otherwise.

    Args:
        tensors: of the operator's graph, by name.
        op: a Quantize with an arithmetic.
        runtime: "onnx" or "tflite".
        add: takes the tensors that are added, and what each is.

    Returns:
        None where there is no such form, or none is needed.
    """
    if not has_quantize_form(op, runtime):
        return None
    data, result = tensors[op.inputs[0]], tensors[op.name]
    quantization = result.per_tensor
    if quantization is None or result.dtype not in ("int8", "uint8") or data.dtype != "float32":
        return None
    low = integer_range(result.dtype)[0]
    point, scale = quantization.point - low, np.float32(quantization.scale[0])
    form = split_product(scale, point)
    if form is None:
        return None
    made, missed, plain = _Made(op, data, add), 0, Quantization.per_tensor(1.0, low)
    if op["arithmetic"] == "divided":
        steps = made.binary("Div", data.name, made.number(float(scale), "scale"), "steps")
        plain = Quantization.per_tensor(1.0, quantization.point)
    elif not point or op["arithmetic"] == "reciprocal":
        steps = made.binary("Mul", data.name, made.number(form.reciprocal, "reciprocal"), "steps")
        plain = Quantization.per_tensor(1.0, quantization.point)
    elif runtime == "onnx":
        steps = made.emit_wide_sum(form.reciprocal, point)
    else:
        steps, missed = made.emit_split_sum(form, point), form.missed
    integers = add(replace(result, quantization=plain), "integers")
    made.ops.append(op.derive("Quantize", (steps,), (integers,)))
    made.ops.append(op.derive("Reinterpret", (integers,), op.outputs))
    return made.ops, missed


class _Made:
    """The operators that stand for one Quantize."""

    def __init__(self, op: Op, data: Tensor, add: Add) -> None:
        self._op, self._data, self._add = op, data, add
        self.ops: list[Op] = []

    def number(self, value: float, hint: str, dtype: str = "float32") -> str:
        return self._add(Tensor("", dtype, (), np.array(value, dtype)), hint)

    def binary(self, kind: str, first: str, second: str, hint: str, dtype: str = "float32", **attributes: str) -> str:
        return self.op(kind, (first, second), hint, dtype, **attributes)

    def op(self, kind: str, inputs: tuple[str, ...], hint: str, dtype: str, **attributes: str) -> str:
        name = self._add(Tensor("", dtype, self._data.shape), hint)
        self.ops.append(self._op.derive(kind, inputs, (name,), **attributes))
        return name

    def emit_wide_sum(self, reciprocal: float, point: int) -> str:
        """Return the fused sum in float64."""
        data = self.op("Cast", (self._data.name,), "wide", "float64", to="float64")
        product = self.binary("Mul", data, self.number(reciprocal, "reciprocal", "float64"), "product", "float64")
        total = self.binary("Add", product, self.number(point, "zero_point", "float64"), "sum", "float64")
        return self.op("Cast", (total,), "steps", "float32", to="float32")

    def emit_split_sum(self, form: SplitProduct, point: int) -> str:
        """Return the fused sum of products in two parts. The Relu keeps the upper part of minus infinity finite: their difference is no
        number otherwise."""
        border = self.number(form.border, "border")
        lifted = self.binary("Add", self._data.name, border, "lifted", activation="relu")
        high = self.binary("Sub", lifted, border, "high")
        rest = self.binary("Sub", self._data.name, high, "low")
        large = self.binary("Mul", high, self.number(form.factors[0], "reciprocal_high"), "product_high")
        large = self.binary("Add", large, self.number(point, "zero_point"), "sum_high")
        small = self.binary("Mul", rest, self.number(form.reciprocal, "reciprocal"), "product_low")
        other = self.binary("Mul", high, self.number(form.factors[1], "reciprocal_low"), "product_rest")
        return self.binary("Add", large, self.binary("Add", small, other, "sum_low"), "steps")


def add_windows(rewriter: Rewriter, data: str, ones: Array, scale: float, result: str, source: str) -> Op:
    """Return the convolution that adds up windows of each channel, whose weights of ones are added as a constant; strides, pads and layout
    are left to the caller.

    Args:
        rewriter: of the graph.
        data: the tensor whose windows are added up.
        ones: the weights, channels, 1, window.
        scale: of the weights, which the sums are multiplied by.
        result: the tensor that it gives.
        source: where it comes from.
    """
    weights = rewriter.constant(f"{result}/window", ones, quantization=Quantization.per_tensor(scale))
    return Op("Conv", (data, weights), (result,), {"dilations": (1, 1), "group": len(ones)}, source)


def find_copied(rewriter: Rewriter, name: str) -> str:
    """Return the tensor whose elements a tensor has, but for their order and what constant bounds clip."""

    def copies(writer: Op) -> bool:
        has_constant_bounds = not any(rewriter.is_computed(bound) for bound in writer.inputs[1:] if bound)
        return kind_of(writer).rule == "move" or (kind_of(writer).clips and has_constant_bounds)

    return trace_back(rewriter.producers, name, copies)


class TorchForms(Rewriter):
    """Puts other operators in the place of those that round as PyTorch's engines do.

    Attributes:
        done: what was done, in words, and how often.
    """

    def __init__(self, graph: Graph, runtime: str) -> None:
        super().__init__(graph)
        self._runtime = runtime
        self.done: Counter[str] = Counter()

    def visit(self, op: Op) -> None:
        """Replace an operator by the form that rounds as its `arithmetic` says; remove `arithmetic` if there is none or none is needed."""
        if not has_torch_form(op):
            return
        named = {"torch": self._resize_as, "fused": self._quantize_as, "reciprocal": self._quantize_as, FLOAT_MEAN: self._mean_as}
        named.get(str(op["arithmetic"]), self._average_as)(op)

    def _drop_arithmetic(self, op: Op) -> None:
        self.replace(op, op.with_attributes(arithmetic=""))

    def _quantize_form(self, op: Op) -> tuple[list[Op], int] | None:
        return quantize_form(self.tensors, op, self._runtime, lambda tensor, hint: self.add(f"{op.name}/{hint}", tensor, data=tensor.data))

    def _quantize_as(self, op: Op) -> None:
        # A sum in float is another one in each runtime; and onnxruntime runs what stands between Dequantize and Quantize on integers.
        is_sum = op["arithmetic"] == "reciprocal" and self.is_computed(find_copied(self, op.inputs[0]))
        found = None if is_sum else self._quantize_form(op)
        if found is None:
            self._drop_arithmetic(op)
            return
        least = ", but for a few of all float32 numbers" if found[1] else ""
        of = "fused sum" if op["arithmetic"] == "fused" else "product with a reciprocal"
        self.done[f"roundings of data to a quantization as PyTorch's {of}{least}"] += 1
        self.replace(op, *found[0])

    def _mean_as(self, op: Op) -> None:
        """Average dequantized data, as PyTorch does, and quantize the mean with PyTorch's rounding."""
        data, result = self.graph[op.inputs[0]], self.graph[op.name]
        if not data.shares_quantization(result):
            self._drop_arithmetic(op)
            return
        mean = self.add_float(f"{result.name}/mean", result)
        rounding = op.derive("Quantize", (mean,), op.outputs, arithmetic="fused")
        found = self._quantize_form(rounding)
        if found is None:
            self._drop_arithmetic(op)
            return
        self.done["means in float, quantized as PyTorch's fused sum, but for the last bit of a few ties"] += 1
        real = self.dequantize(data.name, f"{result.name}/dequantized", op.source)
        self.emit(replace(op.with_attributes(arithmetic="").with_input(0, real), outputs=(mean,)))
        self.replace(op, *found[0])

    def _resize_as(self, op: Op) -> None:
        """Interpolate stored integers as plain numbers, whose sums are exact where weights are: with a quantization of steps of 1."""
        data, result = self.graph[op.inputs[0]], self.graph[op.name]
        if data.dtype not in ("int8", "uint8") or not data.shares_quantization(result):
            self._drop_arithmetic(op)
            return
        self.done["interpolations of stored integers, whose ties PyTorch takes to the even one"] += 1
        steps, plain = Quantization.per_tensor(1.0, integer_range(data.dtype)[0]), op.with_attributes(arithmetic="")
        given = self.compute("Reinterpret", (data.name,), f"{result.name}/of", replace(data, quantization=steps), op.source)
        found = self.add(f"{result.name}/steps", result, quantization=steps)
        if self._runtime == "tflite":
            real, total = self.dequantize(given, f"{data.name}/real", op.source), self.add_float(f"{result.name}/real", result)
            self.emit(replace(plain.with_input(0, real), outputs=(total,)), op.derive("Quantize", (total,), (found,)))
        else:
            self.emit(replace(plain.with_input(0, given), outputs=(found,)))
        self.replace(op, op.derive("Reinterpret", (found,), op.outputs))

    def _average_as(self, op: Op) -> None:
        """Replace an average by a depthwise convolution, if it may tie; the quantizations of its sides are one."""
        form = find_average_form(self.graph, op)
        if form is None:
            self._drop_arithmetic(op)
            return
        window, found = form
        data, result, quantization = self.graph[op.inputs[0]], self.graph[op.name], self.graph[op.name].require_quantization()
        low = integer_range(data.dtype)[0]
        least = ", but for the last bit of a few ties" if found[2] else ""
        self.done[f"averages as convolutions with ones, which round as PyTorch does{least}"] += 1
        own = Quantization.per_tensor(quantization.step, found[0] + low)
        name, pads = self._pad_data(op, data, window, own)
        name, back = self._on_quantization(op, name, own), own != quantization
        kept = not op.attributes.get("keepdims", 1)  # by the convolution, not by the average
        target = result.name
        if back or kept:
            target = self.add(f"{target}/average", result, shape=_convolved_shape(self.graph, op), quantization=own)
        ones = np.ones((window.channels, 1, *window.kernel), np.int8)
        conv = add_windows(self, name, ones, found[1], result.name, op.source)
        self.emit(replace(conv, outputs=(target,)).with_attributes(strides=window.strides, pads=pads, data_format=window.layout))
        if kept:
            given = target, self.constant(f"{result.name}/shape", reshape_sizes(result.shape or ()))
            target = result.name if not back else self.add(f"{result.name}/flat", result, quantization=own)
            self.emit(op.derive("Reshape", given, (target,)))
        if back:
            self.emit(op.derive("Reinterpret", (target,), op.outputs))
        self.remove(op)

    def _pad_data(self, op: Op, data: Tensor, window: Window, quantization: Quantization) -> tuple[str, tuple[int, ...]]:
        """Return the data, with their padding where the convolution would pad with another integer, and the padding that is left to it."""
        pads = window.pads
        if not any(pads) or quantization == data.quantization:
            return data.name, pads
        last = window.layout == "channels_last"
        wide = [0, *pads[:2], 0, 0, *pads[2:], 0] if last else [0, 0, *pads[:2], 0, 0, *pads[2:]]
        return self.pad(data, wide, op.name, op.source), (0, 0, 0, 0)

    def _on_quantization(self, op: Op, name: str, quantization: Quantization) -> str:
        tensor = self[name]
        if tensor.quantization == quantization:
            return name
        moved = replace(tensor, quantization=quantization)
        return self.compute("Reinterpret", (name,), f"{op.name}/from_0", moved, op.source)


def _convolved_shape(graph: Graph, op: Op) -> Shape:
    """Return the shape of the convolution's result: what is averaged keeps its axes."""
    if op.attributes.get("keepdims", 1):
        return graph[op.name].shape or ()
    given = graph[op.inputs[0]].shape or ()
    return (given[0], 1, 1, given[3]) if place_of_channels(graph, op) == "channels_last" else (given[0], given[1], 1, 1)
