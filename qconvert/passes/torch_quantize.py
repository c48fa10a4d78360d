"""The first rounding of data, as torch.quantize_per_tensor has it, in operators of ONNX and of TFLite; a part of match_rounding.

What PyTorch computes as one fused sum is exact in float64, which ONNX has: four more operators. TFLite has no arithmetic in float64, so
there the product is split in two (arithmetic/torch_quantize.py). Where the zero point is 0, a product in float32 is the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import split_product
from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range

__all__ = ["fused_quantize"]


def fused_quantize(graph: Graph, op: Op, runtime: str) -> tuple[list[Op], list[Tensor], int] | None:
    """The operators in place of a Quantize, the tensors that they add, and how many of all float32 numbers still round otherwise.

    Args:
        graph: the operator's.
        op: a Quantize with the arithmetic "fused".
        runtime: "onnx" or "tflite".

    Returns:
        None where there is no such form.
    """
    data, result = graph[op.inputs[0]], graph[op.outputs[0]]
    grid = result.quantization
    if grid is None or not grid.is_per_tensor or result.dtype not in ("int8", "uint8") or data.dtype != "float32":
        return None
    low = integer_range(result.dtype)[0]
    point, scale = int(grid.zero_point[0]) - low, np.float32(grid.scale[0])
    form = split_product(scale, point)
    if form is None:
        return None
    made = _Made(op, data)
    if not point:
        steps, missed = made.binary("Mul", data.name, made.number(form.reciprocal, "reciprocal"), "steps"), 0
    elif runtime == "onnx":
        wide = made.op("Cast", (data.name,), "wide", "float64", to="float64")
        product = made.binary("Mul", wide, made.number(form.reciprocal, "reciprocal", "float64"), "product", "float64")
        total = made.binary("Add", product, made.number(point, "zero_point", "float64"), "sum", "float64")
        steps, missed = made.op("Cast", (total,), "steps", "float32", to="float32"), 0
    else:
        border = made.number(form.border, "border")
        high = made.binary("Sub", made.binary("Add", data.name, border, "lifted"), border, "high")
        rest = made.binary("Sub", data.name, high, "low")
        large = made.binary("Mul", high, made.number(form.factors[0], "reciprocal_high"), "product_high")
        large = made.binary("Add", large, made.number(point, "zero_point"), "sum_high")
        small = made.binary("Mul", rest, made.number(form.reciprocal, "reciprocal"), "product_low")
        other = made.binary("Mul", high, made.number(form.factors[1], "reciprocal_low"), "product_rest")
        steps, missed = made.binary("Add", large, made.binary("Add", small, other, "sum_low"), "steps"), form.missed
    made.tensors.append(replace(result, name=f"{result.name}/integers", quantization=Quantization.per_tensor(1.0, low)))
    made.ops.append(Op("Quantize", (steps,), (made.tensors[-1].name,), {}, op.source))
    made.ops.append(Op("Reinterpret", (made.tensors[-1].name,), op.outputs, {}, op.source))
    return made.ops, made.tensors, missed


class _Made:
    """The operators that stand for one Quantize, and their tensors, named behind its result."""

    def __init__(self, op: Op, data: Tensor) -> None:
        self._op, self._data = op, data
        self.ops: list[Op] = []
        self.tensors: list[Tensor] = []

    def number(self, value: float, hint: str, dtype: str = "float32") -> str:
        name = f"{self._op.outputs[0]}/{hint}"
        self.tensors.append(Tensor(name, dtype, (), np.array(value, dtype)))
        return name

    def binary(self, kind: str, first: str, second: str, hint: str, dtype: str = "float32") -> str:
        return self.op(kind, (first, second), hint, dtype)

    def op(self, kind: str, inputs: tuple[str, ...], hint: str, dtype: str, **attributes: str) -> str:
        name = f"{self._op.outputs[0]}/{hint}"
        self.tensors.append(Tensor(name, dtype, self._data.shape))
        self.ops.append(Op(kind, inputs, (name,), attributes, self._op.source))
        return name
