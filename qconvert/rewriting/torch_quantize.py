"""The first rounding of data, as torch.quantize_per_tensor has it, in operators of ONNX and of TFLite; a part of TorchForms.

What PyTorch computes as one fused sum is exact in float64, which ONNX has: four more operators. TFLite has no arithmetic in float64, so
there the product is split in two (arithmetic/torch_quantize.py). Where the zero point is 0, a product in float32 is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import SplitProduct, split_product
from qconvert.arithmetic.dtypes import integer_range
from qconvert.arithmetic.quantization import Quantization
from qconvert.graph.schema import Graph, Op, Tensor

__all__ = ["fused_quantize"]


#: Adds a tensor to the graph; gives its name, which is after that of the result.
Add = Callable[[Tensor, str], str]


def fused_quantize(graph: Graph, op: Op, runtime: str, add: Add) -> tuple[list[Op], int] | None:
    """The operators in place of a Quantize, and how many of all float32 numbers still round otherwise.

    Args:
        graph: the operator's.
        op: a Quantize with the arithmetic "fused".
        runtime: "onnx" or "tflite".
        add: takes the tensors that are added, and what each is.

    Returns:
        None where there is no such form.
    """
    data, result = graph[op.inputs[0]], graph[op.outputs[0]]
    quantization = result.quantization
    if quantization is None or not quantization.is_per_tensor or result.dtype not in ("int8", "uint8") or data.dtype != "float32":
        return None
    low = integer_range(result.dtype)[0]
    point, scale = int(quantization.zero_point[0]) - low, np.float32(quantization.scale[0])
    form = split_product(scale, point)
    if form is None:
        return None
    made, missed = _Made(op, data, add), 0
    if not point:
        steps = made.binary("Mul", data.name, made.number(form.reciprocal, "reciprocal"), "steps")
    elif runtime == "onnx":
        steps = made.emit_wide_sum(form.reciprocal, point)
    else:
        steps, missed = made.emit_split_sum(form, point), form.missed
    integers = add(replace(result, quantization=Quantization.per_tensor(1.0, low)), "integers")
    made.ops.append(Op("Quantize", (steps,), (integers,), {}, op.source))
    made.ops.append(Op("Reinterpret", (integers,), op.outputs, {}, op.source))
    return made.ops, missed


class _Made:
    """The operators that stand for one Quantize."""

    def __init__(self, op: Op, data: Tensor, add: Add) -> None:
        self._op, self._data, self._add = op, data, add
        self.ops: list[Op] = []

    def number(self, value: float, hint: str, dtype: str = "float32") -> str:
        return self._add(Tensor("", dtype, (), np.array(value, dtype)), hint)

    def binary(self, kind: str, first: str, second: str, hint: str, dtype: str = "float32") -> str:
        return self.op(kind, (first, second), hint, dtype)

    def op(self, kind: str, inputs: tuple[str, ...], hint: str, dtype: str, **attributes: str) -> str:
        name = self._add(Tensor("", dtype, self._data.shape), hint)
        self.ops.append(Op(kind, inputs, (name,), attributes, self._op.source))
        return name

    def emit_wide_sum(self, reciprocal: float, point: int) -> str:
        """The fused sum in float64."""
        data = self.op("Cast", (self._data.name,), "wide", "float64", to="float64")
        product = self.binary("Mul", data, self.number(reciprocal, "reciprocal", "float64"), "product", "float64")
        total = self.binary("Add", product, self.number(point, "zero_point", "float64"), "sum", "float64")
        return self.op("Cast", (total,), "steps", "float32", to="float32")

    def emit_split_sum(self, form: SplitProduct, point: int) -> str:
        """The fused sum of products in two parts."""
        border = self.number(form.border, "border")
        high = self.binary("Sub", self.binary("Add", self._data.name, border, "lifted"), border, "high")
        rest = self.binary("Sub", self._data.name, high, "low")
        large = self.binary("Mul", high, self.number(form.factors[0], "reciprocal_high"), "product_high")
        large = self.binary("Add", large, self.number(point, "zero_point"), "sum_high")
        small = self.binary("Mul", rest, self.number(form.reciprocal, "reciprocal"), "product_low")
        other = self.binary("Mul", high, self.number(form.factors[1], "reciprocal_low"), "product_rest")
        return self.binary("Add", large, self.binary("Add", small, other, "sum_low"), "steps")
