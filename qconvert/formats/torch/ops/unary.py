"""Functions of single elements without parameters, and changes of type.

Where a tensor lies and how it is laid out in memory says nothing about its values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import REALS
from qconvert.formats.torch.operands import Part, as_real, cast_operand
from qconvert.formats.torch.ops.elementwise import truncate
from qconvert.formats.torch.quantizing import emit_dequantize
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments
from qconvert.formats.torch.values import Ref
from qconvert.graph import Quantization
from qconvert.operators.values import Value, apply, erf, exp, log


def cast(c: Reading, name: str, dtype: str | None) -> str:
    """A tensor in another type; quantized tensors stay as they are. Constants of integers count as real numbers by a Dequantize, so that
    they stay integers."""
    tensor = c.lookup(c.plain(name))
    if dtype is None or tensor.dtype == dtype:
        return tensor.name
    if tensor.is_quantized:
        if dtype == "float32":
            return name
        raise c.unsupported_error(f"a quantized tensor as {dtype}", rule="dtype-not-covered")
    if dtype == "float32" and tensor.dtype in ("int8", "uint8") and c.known(name) is not None and (tensor.rank or 0) >= 2:
        return emit_dequantize(c, c.label_tensor(tensor, Quantization.per_tensor(1.0)))
    return cast_operand(c, tensor.name, dtype, "data") if tensor.is_constant else c.emit("Cast", [tensor.name], quantization=None, to=dtype)


def read_to(c: Reading) -> str:
    """aten::to, _to_copy: to a type, a device, or both."""
    return cast(c, c.name(), c.dtype("dtype") if "dtype" in c else None)


def read_number_to(c: Reading) -> Any:
    """aten::to of a number, such as a static size: 2 as float32 is 2.0."""
    value, dtype = c["self"], c.dtype("dtype")
    if isinstance(value, Ref):
        return Ref(cast(c, value.name, dtype), number=True)
    return bool(value) if dtype == "bool" else float(value) if dtype in REALS else int(value)


def read_like(c: Reading) -> str:
    """aten::type_as and to(other): in another tensor's type."""
    other = c.operand("other")
    return c.name() if other.is_quantized else cast(c, c.name(), other.dtype)


def read_named(dtype: str) -> ReadFunction:
    """aten::float, half, int …"""
    return lambda c: cast(c, c.name(), dtype)


def read_assertion(c: Reading) -> None:
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


def read_real(kind: str) -> ReadFunction:
    """A function of float values; integers are cast to float32 first."""
    return lambda c: c.emit(kind, [as_real(c)])


def read_same_type(kind: str) -> ReadFunction:
    """A function that keeps the type: integers of integers."""
    return lambda c: c.emit(kind, [c.name()])


def read_floor_ceil(kind: str) -> ReadFunction:
    """A rounding, which leaves integers as they are."""
    return lambda c: c.emit(kind, [c.name()]) if c.is_real(c.name()) else c.name()


def scale_values(c: Reading, name: str, factor: float, hint: str = "") -> str:
    """Float values times a number."""
    return c.emit("Mul", [name, c.real_constant(factor, name, "factor")], quantization=None, hint=hint)


@with_arguments
def read_log(c: Reading, base: float) -> Value:
    """aten::log2 and log10."""
    known = c.constant("self")
    if known is not None and known.dtype == np.float32:  # of a constant as PyTorch computes it: whole for powers of the base
        with np.errstate(all="ignore"):
            return c.const((np.log2(known) if base == 2 else np.log10(known)).astype(np.float32), "log")
    return apply("Mul", log(Part(c, as_real(c))), 1 / math.log(base), hint="")


def read_exp2(c: Reading) -> Value:
    """aten::exp2: exp(log(2) * x); of a constant as PyTorch computes it, a power of two where x is whole."""
    known = c.constant("self")
    if known is not None and known.dtype == np.float32:
        with np.errstate(all="ignore"):
            return c.const(np.exp2(known), "power")
    return exp(Part(c, as_real(c)) * math.log(2), hint="")


def read_trunc(c: Reading) -> Value:
    """aten::trunc, fix."""
    return truncate(Part(c, c.name()), hint="") if c.is_real(c.name()) else c.name()


def read_round(c: Reading) -> Value:
    """aten::round, also to a number of decimals."""
    name, decimals = c.name(), c.integer("decimals")
    if not c.is_real(name):
        return name
    if decimals == 0:
        return c.emit("Round", [name])
    return apply("Mul", apply("Round", Part(c, name) * 10.0**decimals), 10.0**-decimals, hint="")


def read_square(c: Reading) -> str:
    """aten::square, also of integers."""
    name = c.name()
    return c.emit("Square" if c.lookup(name).dtype in REALS else "Mul", [name] if c.lookup(name).dtype in REALS else [name, name])


def read_finite(c: Reading) -> Value:
    """aten::isfinite: neither infinite nor no number."""
    x = Part(c, c.name())
    return apply("Not", apply("Or", apply("IsNaN", x), apply("IsInf", x)), hint="")


#: Kinds that aten calls by the same name, in lower case, and those of which "a" is "arc" too.
_REAL = ("Sqrt", "Rsqrt", "Exp", "Log", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Erf", "Reciprocal")
_INVERSE = ("Asin", "Acos", "Atan", "Asinh", "Acosh", "Atanh")
_KEPT = {"abs": "Abs", "absolute": "Abs", "neg": "Neg", "negative": "Neg", "sign": "Sign", "sgn": "Sign"}

OPERATORS: Mapping[str, ReadFunction] = {
    f"aten::to(T self, i dtype, {_COPY})": read_to,
    f"aten::to(f self, i dtype, {_COPY})": read_number_to,
    f"aten::to(T self, T other, {_COPY})": read_like,
    f"aten::to(T self, a? device, i dtype, {_COPY})": read_to,
    f"aten::to(T self, a? device=None, i? dtype=None, {_COPY})": read_to,
    f"aten::to(T self, i? dtype=None, {_PLACE}, {_COPY})": read_to,
    f"aten::_to_copy(T self, i? dtype=None, {_PLACE}, b? non_blocking=False, a memory_format=None)": read_to,
    "aten::type_as(T self, T other)": read_like,
    **{f"aten::{name}(T self, b non_blocking=False)": read_named(dtype) for (name, dtype) in _NAMED.items()},
    **{f"aten::_cast_{name}(T self, b non_blocking=False)": read_named(dtype) for (name, dtype) in _CAST.items()},
    "aten::cpu|cuda|positive(T self)": Reading.name,
    "aten::_assert_tensor_metadata(a a, a size=None, a stride=None, a dtype=None, a device=None, a layout=None)": read_assertion,
    "quantized_decomposed::convert_element_type(T input, i dtype)": lambda c: cast(c, c.name(), c.dtype("dtype")),
    **{f"aten::{kind.lower()}(T self)": read_real(kind) for kind in _REAL},
    **{f"aten::{kind.lower()}|arc{kind[1:].lower()}(T self)": read_real(kind) for kind in _INVERSE},
    "aten::special_erf(T self)": read_real("Erf"),
    **{f"aten::{name}(T self)": read_same_type(kind) for (name, kind) in _KEPT.items()},
    "prim::abs(T self)": read_same_type("Abs"),
    **{f"aten::{name}(T self)": read_floor_ceil(name.title()) for name in ("floor", "ceil")},
    **{f"aten::{name}(T self)": read_same_type(kind) for (name, kind) in (("isnan", "IsNaN"), ("isinf", "IsInf"))},
    "aten::isfinite(T self)": read_finite,
    "aten::deg2rad(T self)": lambda c: scale_values(c, as_real(c), math.pi / 180),
    "aten::rad2deg(T self)": lambda c: scale_values(c, as_real(c), 180 / math.pi),
    "aten::round(T self, i decimals=0)": read_round,
    "aten::trunc|fix(T self)": read_trunc,
    "aten::frac(T self)": lambda c: apply("Sub", Part(c, c.name()), truncate(Part(c, c.name())), hint=""),
    "aten::square(T self)": read_square,
    "aten::log2(T self)": read_log(2),
    "aten::log10(T self)": read_log(10),
    "aten::log1p(T self)": lambda c: log(Part(c, as_real(c)) + 1.0, hint=""),
    "aten::exp2(T self)": read_exp2,
    "aten::expm1(T self)": lambda c: apply("Sub", exp(Part(c, as_real(c))), 1.0, hint=""),
    "aten::erfc(T self)": lambda c: apply("Sub", 1.0, erf(Part(c, as_real(c))), hint=""),
}
