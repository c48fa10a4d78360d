"""Between real values and grids: aten's operators on quantized tensors, and quantized_decomposed's on plain ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.formats.torch.dtypes import QUANTIZED
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Ref
from qconvert.graph import Quantization, integer_range

__all__ = ["OPERATORS"]


def read_quantize(c: Call) -> Ref:
    """aten::quantize_per_tensor(x, scale, zero_point, dtype): a quantized tensor."""
    dtype = c.torch_type("dtype")
    if dtype is None or dtype not in QUANTIZED:
        raise c.invalid(f"its type {dtype} is not quantized")
    stored = QUANTIZED[dtype]
    return c.emit("Quantize", [c.name("self")], dtype=stored, grid=c.grid(dtype=stored))


def read_dequantize(c: Call) -> Ref:
    """aten::dequantize(x): what is not quantized stays as it is."""
    if not c.operand("self").is_quantized:
        return Ref(c.name("self"))
    return c.emit("Dequantize", [c.name("self")], dtype="float32", grid=None)


def _narrowed(c: Call, grid: Quantization, dtype: str) -> Quantization:
    """A grid with the limits that a call states, where these are not the type's."""
    low, high = c.integer("quant_min"), c.integer("quant_max")
    lowest, highest = integer_range(dtype)
    if not lowest <= low <= high <= highest:
        raise c.invalid(f"its limits {low} and {high} are not within {dtype}")
    return replace(grid, quant_min=None if low == lowest else low, quant_max=None if high == highest else high)


def _stated_grid(c: Call, dtype: str) -> Quantization:
    """The grid of quantized_decomposed's operators, per tensor or along an axis."""
    if "axis" not in c:
        return _narrowed(c, c.grid(dtype=dtype), dtype)
    scales, zero_points = c.constant("scales"), c.constant("zero_points")
    if scales is None or scales.ndim != 1 or (zero_points is not None and zero_points.shape != scales.shape):
        raise c.unsupported("scales that are computed at run time, or of several axes")
    zeros = np.zeros(scales.shape, np.int64) if zero_points is None else zero_points.astype(np.int64)
    reals = scales.astype(np.float32)
    if not (np.isfinite(reals).all() and (reals > 0).all()):
        raise c.invalid("a scale is no positive number")
    return _narrowed(c, Quantization(reals, zeros, c.axis(c.integer("axis"), c.rank("input"))), dtype)


def read_decomposed_quantize(c: Call) -> Ref:
    """quantized_decomposed::quantize_per_tensor and quantize_per_channel."""
    dtype = c.dtype("dtype") or "int8"
    return c.emit("Quantize", [c.name("input")], dtype=dtype, grid=_stated_grid(c, dtype))


def read_decomposed_dequantize(c: Call) -> Ref:
    """quantized_decomposed::dequantize_per_tensor and dequantize_per_channel: of integers, which this gives their grid."""
    tensor = c.operand("input")
    grid = _stated_grid(c, tensor.dtype)
    dtype = c.dtype("out_dtype") or "float32"
    return c.emit("Dequantize", [c.labelled(tensor, grid)], dtype=dtype, grid=None)


_LIMITS = "i quant_min, i quant_max, i dtype"
_PER_CHANNEL = f"T input, T scales, T? zero_points, i axis, {_LIMITS}"

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::quantize_per_tensor": [
        Operator("T self, f scale, i zero_point, i dtype", read_quantize),
        Operator("T self, T scale, T zero_point, i dtype", read_quantize),
    ],
    "aten::dequantize": Operator("T self", read_dequantize),
    "quantized_decomposed::quantize_per_tensor": [
        Operator(f"T input, f scale, i zero_point, {_LIMITS}", read_decomposed_quantize),
        Operator(f"T input, T scale, T zero_point, {_LIMITS}", read_decomposed_quantize),
    ],
    "quantized_decomposed::dequantize_per_tensor": [
        Operator(f"T input, f scale, i zero_point, {_LIMITS}, i? out_dtype=None", read_decomposed_dequantize),
        Operator(f"T input, T scale, T zero_point, {_LIMITS}, i? out_dtype=None", read_decomposed_dequantize),
    ],
    "quantized_decomposed::quantize_per_channel": Operator(_PER_CHANNEL, read_decomposed_quantize),
    "quantized_decomposed::dequantize_per_channel": Operator(f"{_PER_CHANNEL}, i? out_dtype=None", read_decomposed_dequantize),
}
