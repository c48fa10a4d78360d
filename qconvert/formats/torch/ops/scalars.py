"""Sums and products of a quantized tensor and a number: the quantization changes, and the integers where it cannot.

Source: ATen/native/quantized/cpu/BinaryOps.cpp (_add_scalar_out), qmul.cpp (_mul_scalar_out).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qconvert.formats.torch.reading import Call, Operator, ReadFunction
from qconvert.formats.torch.values import Ref
from qconvert.graph import Quantization, integer_range, numpy_dtype

__all__ = ["OPERATORS", "SCALAR_PRODUCT", "SCALAR_PRODUCT_RELU", "SCALAR_SUM", "SCALAR_SUM_RELU"]


def _data(c: Call) -> tuple[str, str, float, int]:
    """The quantized tensor: its name, its type, scale and zero point."""
    tensor = c.operand("qa")
    if tensor.quantization is None or not tensor.quantization.is_per_tensor:
        raise c.invalid("the data are not quantized with one scale", rule="not-per-tensor")
    return tensor.name, tensor.dtype, float(tensor.quantization.scale[0]), int(tensor.quantization.zero_point[0])


def _quantization(c: Call, scale: float, zero_point: int) -> Quantization:
    """A quantization whose scale is rounded to float32."""
    real = np.float32(scale)
    if not np.isfinite(real) or real <= 0:
        raise c.invalid(f"the scale of the result is {scale}", rule="scale-not-positive")
    return Quantization.per_tensor(float(real), zero_point)


def read_scalar_sum(c: Call, hint: str = "") -> Ref:
    """x + n: the zero point is shifted by n / scale, rounded. If it would leave the type, the scale is enlarged and the integers are
    requantized."""
    name, dtype, scale, zero_point = _data(c)
    low, high = integer_range(dtype)
    moved = float(np.rint(c.number("b") / scale))
    if not np.isfinite(moved) or abs(moved) > 2**31:
        raise c.unsupported_error(f"the number {c.number('b')} and the scale {scale}", rule="form-not-covered")
    steps = int(moved)
    if low <= zero_point - steps <= high:
        return c.emit("Reinterpret", [name], quantization=_quantization(c, scale, zero_point - steps), hint=hint)
    reached = high - (zero_point - steps) if steps > 0 else zero_point - steps - low
    quantization = _quantization(c, reached / (high - low) * scale, low if steps > 0 else high)
    return c.emit("Add", [name, _add_step_constant(c, steps, scale, dtype)], quantization=quantization, hint=hint)


def _add_step_constant(c: Call, steps: int, scale: float, dtype: str) -> str:
    """A constant of a whole number of scale steps: a stored integer if it is within the type, else a float."""
    low, high = integer_range(dtype)
    zero_point = low if steps > 0 else high
    if low <= zero_point + steps <= high:
        return c.const(np.array(zero_point + steps, numpy_dtype(dtype)), "number", Quantization.per_tensor(scale, zero_point))
    return c.const(np.array(steps * scale, np.float32), "number")


def read_scalar_product(c: Call, hint: str = "") -> Ref:
    """x * n: the scale is multiplied. A negative number turns the integers around; by 0 they are all 0 on the scale 1."""
    name, dtype, scale, zero_point = _data(c)
    low, high = integer_range(dtype)
    factor = c.number("b")
    if factor == 0:
        return c.emit("Mul", [name, c.const(np.array(0, np.float32), "number")], quantization=Quantization.per_tensor(1.0, 0), hint=hint)
    quantization = _quantization(c, abs(factor) * scale, zero_point)
    if factor > 0:
        return c.emit("Reinterpret", [name], quantization=quantization, hint=hint)
    stretched = c.emit("Reinterpret", [name], quantization=quantization, hint=f"{hint}/stretched" if hint else "stretched")
    return c.emit("Neg", [stretched.name], quantization=_quantization(c, abs(factor) * scale, low + high - zero_point), hint=hint)


def _with_relu(read: Callable[[Call, str], Ref]) -> ReadFunction:
    """A Relu after it, with the quantization that it found."""
    return lambda c: c.emit("Relu", [read(c, "unclipped").name])


def _forms(read: ReadFunction) -> list[Operator]:
    """The number after the tensor, and before it."""
    return [Operator("q qa, x b", read), Operator("f b, q qa", read)]


SCALAR_SUM, SCALAR_SUM_RELU = _forms(read_scalar_sum), _forms(_with_relu(read_scalar_sum))
SCALAR_PRODUCT, SCALAR_PRODUCT_RELU = _forms(read_scalar_product), _forms(_with_relu(read_scalar_product))

OPERATORS: Mapping[str, Operator | Sequence[Operator]] = {
    "quantized::add_scalar": SCALAR_SUM,
    "quantized::add_scalar_relu": SCALAR_SUM_RELU,
    "quantized::mul_scalar": SCALAR_PRODUCT,
    "quantized::mul_scalar_relu": SCALAR_PRODUCT_RELU,
}
