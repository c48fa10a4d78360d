"""Comparisons, of float values where data are quantized, and operators on truth values."""

from __future__ import annotations

from collections.abc import Sequence

from qconvert.formats.torch.promotion import cast_operand, operands
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]


def _dequantize(c: Call, name: str, hint: str) -> str:
    """A tensor as float values, if it is quantized."""
    if not c.lookup(name).is_quantized:
        return name
    return c.emit("Dequantize", [name], dtype="float32", quantization=None, hint=f"{hint}/real").name


def read_comparison(kind: str) -> Operator:
    """aten::eq, ne, lt, le, gt, ge: of tensors, or of a tensor and a number."""

    def read(c: Call) -> Ref:
        names, _ = operands(c, "self", "other")
        plain = [_dequantize(c, name, hint) for name, hint in zip(names, ("self", "other"), strict=True)]
        return c.emit(kind, plain, dtype="bool", quantization=None)

    return Operator("T self, x other", read)


def _cast_to_bool(c: Call, argument: str) -> str:
    name = _dequantize(c, cast_operand(c, c[argument], "bool", argument), argument)
    return name if c.lookup(name).dtype == "bool" else cast_operand(c, Ref(name), "bool", argument)


def read_logical(kind: str) -> Operator:
    """aten::logical_and, or, xor: of what is not 0."""
    return Operator(
        "T self, T other", lambda c: c.emit(kind, [_cast_to_bool(c, "self"), _cast_to_bool(c, "other")], dtype="bool", quantization=None)
    )


def read_bitwise(kind: str) -> Operator:
    """aten::bitwise_and, or, xor, __and__ …: of truth values, or of the bits of whole numbers."""

    def read(c: Call) -> Ref:
        names, dtype = operands(c, "self", "other")
        if (dtype != "bool" and "int" not in dtype) or any(c.lookup(name).is_quantized for name in names):
            raise c.invalid(f"the data are {dtype}; bitwise operators require integers or booleans", rule="wrong-type")
        return c.emit(kind if dtype == "bool" else f"Bitwise{kind}", names, dtype=dtype, quantization=None)

    return Operator("x self, x other", read)


def read_not(c: Call) -> Ref:
    """aten::logical_not."""
    return c.emit("Not", [_cast_to_bool(c, "self")], dtype="bool", quantization=None)


def read_bitwise_not(c: Call) -> Ref:
    """aten::bitwise_not: of truth values, or of the bits of whole numbers."""
    tensor = c.operand("self")
    if tensor.dtype == "bool":
        return c.emit("Not", [tensor.name], dtype="bool", quantization=None)
    if tensor.is_quantized or "int" not in tensor.dtype:
        raise c.invalid(f"the data are {tensor.dtype}; bitwise operators require integers or booleans", rule="wrong-type")
    return c.emit("BitwiseNot", [tensor.name], dtype=tensor.dtype, quantization=None)


_COMPARISONS = {
    "Equal": ("eq", "__eq__"), "NotEqual": ("ne", "not_equal"), "Less": ("lt", "less"), "LessOrEqual": ("le", "less_equal"),
    "Greater": ("gt", "greater"), "GreaterOrEqual": ("ge", "greater_equal"),
}  # fmt: skip
_BITWISE = {kind: (f"bitwise_{kind.lower()}", f"__{kind.lower()}__") for kind in ("And", "Or", "Xor")}

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    **{f"aten::{name}": read_comparison(kind) for kind, names in _COMPARISONS.items() for name in names},
    **{f"aten::logical_{kind.lower()}": read_logical(kind) for kind in ("And", "Or", "Xor")},
    **{f"aten::{name}": read_bitwise(kind) for kind, names in _BITWISE.items() for name in names},
    "aten::logical_not": Operator("T self", read_not),
    **{f"aten::{name}": Operator("T self", read_bitwise_not) for name in ("bitwise_not", "__not__")},
}
