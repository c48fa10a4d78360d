"""Functions of single elements without parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from qconvert.arithmetic.dtypes import REALS
from qconvert.formats.torch.ops.elementwise import emit_trunc
from qconvert.formats.torch.promotion import as_real
from qconvert.formats.torch.reading import Call, Operator, ReadFunction
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS", "scale_values"]


def read_real(kind: str) -> ReadFunction:
    """A function of float values; integers are cast to float32 first."""
    return lambda c: c.emit(kind, [as_real(c, "self")])


def read_same_type(kind: str) -> ReadFunction:
    """A function that keeps the type: integers of integers."""
    return lambda c: c.emit(kind, [c.name("self")])


def read_floor_ceil(kind: str) -> ReadFunction:
    """A rounding, which leaves integers as they are."""
    return lambda c: c.emit(kind, [c.name("self")]) if c.is_real(c.name("self")) else Ref(c.name("self"))


def scale_values(c: Call, name: str, factor: float, hint: str = "") -> Ref:
    """Float values times a number."""
    return c.emit("Mul", [name, c.real_constant(factor, name, "factor")], quantization=None, hint=hint)


def read_log(base: float) -> ReadFunction:
    """aten::log2 and log10."""

    def read(c: Call) -> Ref:
        known = c.constant("self")
        if known is not None and known.dtype == np.float32:  # of a constant as PyTorch computes it: whole for powers of the base
            with np.errstate(all="ignore"):
                return Ref(c.const((np.log2(known) if base == 2 else np.log10(known)).astype(np.float32), "log"))
        return scale_values(c, c.emit("Log", [as_real(c, "self")], quantization=None, hint="natural").name, 1 / math.log(base))

    return read


def read_log1p(c: Call) -> Ref:
    """aten::log1p: log(1 + x)."""
    name = as_real(c, "self")
    return c.emit("Log", [c.emit("Add", [name, c.real_constant(1.0, name, "one")], quantization=None, hint="sum").name], quantization=None)


def read_exp2(c: Call) -> Ref:
    """aten::exp2: exp(log(2) * x); of a constant as PyTorch computes it, a power of two where x is whole."""
    known = c.constant("self")
    if known is not None and known.dtype == np.float32:
        with np.errstate(all="ignore"):
            return Ref(c.const(np.exp2(known), "power"))
    return c.emit("Exp", [scale_values(c, as_real(c, "self"), math.log(2), "exponent").name], quantization=None)


def _read_minus_one(kind: str, inner: bool) -> ReadFunction:
    """aten::expm1, exp(x) - 1, and erfc, 1 - erf(x)."""

    def read(c: Call) -> Ref:
        name = c.emit(kind, [as_real(c, "self")], quantization=None, hint="function").name
        one = c.real_constant(1.0, name, "one")
        return c.emit("Sub", [name, one] if inner else [one, name], quantization=None)

    return read


def read_trunc(c: Call) -> Ref:
    """aten::trunc, fix."""
    name = c.name("self")
    return emit_trunc(c, name) if c.is_real(name) else Ref(name)


def read_fraction(c: Call) -> Ref:
    """aten::frac: x - trunc(x)."""
    name = c.name("self")
    sign = c.emit("Sign", [name], quantization=None, hint="sign").name
    part = c.emit("Floor", [c.emit("Abs", [name], quantization=None, hint="magnitude").name], quantization=None, hint="whole").name
    return c.emit("Sub", [name, c.emit("Mul", [sign, part], quantization=None, hint="truncated").name], quantization=None)


def read_round(c: Call) -> Ref:
    """aten::round, also to a number of decimals."""
    name, decimals = c.name("self"), c.integer("decimals")
    if not c.is_real(name):
        return Ref(name)
    if decimals == 0:
        return c.emit("Round", [name])
    whole = c.emit("Round", [scale_values(c, name, 10.0**decimals, "shifted").name], quantization=None, hint="whole")
    return scale_values(c, whole.name, 10.0**-decimals)


def read_square(c: Call) -> Ref:
    """aten::square, also of integers."""
    name = c.name("self")
    return c.emit("Square" if c.lookup(name).dtype in REALS else "Mul", [name] if c.lookup(name).dtype in REALS else [name, name])


def read_degrees(factor: float) -> ReadFunction:
    """aten::deg2rad and rad2deg."""
    return lambda c: scale_values(c, as_real(c, "self"), factor)


def read_finite(c: Call) -> Ref:
    """aten::isfinite: neither infinite nor no number."""
    found = [c.emit(kind, [c.name("self")], quantization=None, hint=kind).name for kind in ("IsNaN", "IsInf")]
    return c.emit("Not", [c.emit("Or", found, dtype="bool", quantization=None, hint="endless").name], dtype="bool", quantization=None)


_REAL = {
    "sqrt": "Sqrt", "rsqrt": "Rsqrt", "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "asin": "Asin", "arcsin": "Asin",
    "acos": "Acos", "arccos": "Acos", "atan": "Atan", "arctan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh",
    "arcsinh": "Asinh", "acosh": "Acosh", "arccosh": "Acosh", "atanh": "Atanh", "arctanh": "Atanh", "erf": "Erf",
    "special_erf": "Erf", "reciprocal": "Reciprocal",
}  # fmt: skip
_KEPT = {"abs": "Abs", "absolute": "Abs", "neg": "Neg", "negative": "Neg", "sign": "Sign", "sgn": "Sign"}

OPERATORS: Mapping[str, Operator] = {
    **{f"aten::{name}": Operator("T self", read_real(kind)) for name, kind in _REAL.items()},
    **{f"aten::{name}": Operator("T self", read_same_type(kind)) for name, kind in _KEPT.items()},
    "prim::abs": Operator("T self", read_same_type("Abs")),
    **{f"aten::{name}": Operator("T self", read_floor_ceil(name.title())) for name in ("floor", "ceil")},
    **{f"aten::{name}": Operator("T self", read_same_type(kind)) for name, kind in (("isnan", "IsNaN"), ("isinf", "IsInf"))},
    "aten::isfinite": Operator("T self", read_finite),
    "aten::positive": Operator("T self", lambda c: Ref(c.name("self"))),
    "aten::deg2rad": Operator("T self", read_degrees(math.pi / 180)),
    "aten::rad2deg": Operator("T self", read_degrees(180 / math.pi)),
    "aten::round": Operator("T self, i decimals=0", read_round),
    **{f"aten::{name}": Operator("T self", read_trunc) for name in ("trunc", "fix")},
    "aten::frac": Operator("T self", read_fraction),
    "aten::square": Operator("T self", read_square),
    "aten::log2": Operator("T self", read_log(2)),
    "aten::log10": Operator("T self", read_log(10)),
    "aten::log1p": Operator("T self", read_log1p),
    "aten::exp2": Operator("T self", read_exp2),
    "aten::expm1": Operator("T self", _read_minus_one("Exp", inner=True)),
    "aten::erfc": Operator("T self", _read_minus_one("Erf", inner=False)),
}
