"""Sums and products of two tensors, and functions of one."""

from __future__ import annotations

from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]


def read_quantized_binary(kind: str, activation: str = "") -> Operator:
    """quantized::add, mul and their forms with a Relu: real values, rounded onto the grid that the call states."""

    def read(c: Call) -> Ref:
        grid = c.grid(dtype=c.operand("qa").dtype)
        return c.emit(kind, [c.name("qa"), c.name("qb")], grid=grid, activation=activation)

    return Operator("T qa, T qb, f scale, i zero_point", read)


def read_relu(c: Call) -> Ref:
    """aten::relu, which keeps the grid of a quantized tensor."""
    return c.emit("Relu", [c.name("self")])


OPERATORS = {
    "quantized::add": read_quantized_binary("Add"),
    "quantized::add_relu": read_quantized_binary("Add", "relu"),
    "quantized::mul": read_quantized_binary("Mul"),
    "quantized::mul_relu": read_quantized_binary("Mul", "relu"),
    "aten::relu": Operator("T self", read_relu),
}
