"""Changes of type. Where a tensor lies and how it is laid out in memory says nothing about its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.arithmetic.dtypes import REALS
from qconvert.formats.torch.promotion import cast_operand
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Ref
from qconvert.graph import Quantization

__all__ = ["OPERATORS"]


def cast(c: Call, name: str, dtype: str | None) -> Ref:
    """A tensor in another type; quantized tensors stay as they are. Constants of integers count as real numbers by a Dequantize, so that
    they stay integers."""
    tensor = c.lookup(c.plain(name))
    if dtype is None or tensor.dtype == dtype:
        return Ref(tensor.name)
    if tensor.is_quantized:
        if dtype == "float32":
            return Ref(name)
        raise c.unsupported_error(f"a quantized tensor as {dtype}", rule="dtype-not-covered")
    if dtype == "float32" and tensor.dtype in ("int8", "uint8") and c.known(name) is not None and (tensor.rank or 0) >= 2:
        return c.emit("Dequantize", [c.label_tensor(tensor, Quantization.per_tensor(1.0))], dtype="float32", quantization=None)
    return Ref(cast_operand(c, Ref(tensor.name), dtype, "data"))


def read_to(c: Call) -> Ref:
    """aten::to, _to_copy: to a type, a device, or both."""
    return cast(c, c.name("self"), c.dtype("dtype") if "dtype" in c else None)


def read_number_to(c: Call) -> Any:
    """aten::to of a number, such as a static size: 2 as float32 is 2.0."""
    value, dtype = c["self"], c.dtype("dtype")
    if isinstance(value, Ref):
        return Ref(cast(c, value.name, dtype).name, number=True)
    return bool(value) if dtype == "bool" else float(value) if dtype in REALS else int(value)


def read_like(c: Call) -> Ref:
    """aten::type_as and to(other): in another tensor's type."""
    other = c.operand("other")
    return Ref(c.name("self")) if other.is_quantized else cast(c, c.name("self"), other.dtype)


def read_named(dtype: str) -> Operator:
    """aten::float, half, int …"""
    return Operator("T self, b non_blocking=False", lambda c: cast(c, c.name("self"), dtype))


def read_assertion(c: Call) -> None:
    """An operator that checks its arguments and computes nothing."""


_NAMED = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "int": "int32", "long": "int64",
    "short": "int16", "char": "int8", "byte": "uint8", "bool": "bool",
}  # fmt: skip
_CAST = {
    "Float": "float32", "Double": "float64", "Half": "float16", "Int": "int32", "Long": "int64", "Short": "int16", "Char": "int8",
    "Byte": "uint8",
}  # fmt: skip
_COPY = "b? non_blocking=False, b? copy=False, a memory_format=None"
_PLACE = "a layout=None, a device=None, a pin_memory=None"

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::to": [
        Operator(f"T self, i dtype, {_COPY}", read_to),
        Operator(f"f self, i dtype, {_COPY}", read_number_to),
        Operator(f"T self, T other, {_COPY}", read_like),
        Operator(f"T self, a? device, i dtype, {_COPY}", read_to),
        Operator(f"T self, a? device=None, i? dtype=None, {_COPY}", read_to),
        Operator(f"T self, i? dtype=None, {_PLACE}, {_COPY}", read_to),
    ],
    "aten::_to_copy": Operator(f"T self, i? dtype=None, {_PLACE}, b? non_blocking=False, a memory_format=None", read_to),
    "aten::type_as": Operator("T self, T other", read_like),
    **{f"aten::{name}": read_named(dtype) for name, dtype in _NAMED.items()},
    **{f"aten::_cast_{name}": read_named(dtype) for name, dtype in _CAST.items()},
    **{f"aten::{name}": Operator("T self", lambda c: Ref(c.name("self"))) for name in ("cpu", "cuda")},
    "aten::_assert_tensor_metadata": Operator(
        "a a, a size=None, a stride=None, a dtype=None, a device=None, a layout=None", read_assertion
    ),
    "quantized_decomposed::convert_element_type": Operator("T input, i dtype", lambda c: cast(c, c.name("input"), c.dtype("dtype"))),
}
