"""Arithmetic of two operands, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.arithmetic.dtypes import REALS
from qconvert.formats.torch.ops.scalars import SCALAR_PRODUCT, SCALAR_PRODUCT_RELU, SCALAR_SUM, SCALAR_SUM_RELU
from qconvert.formats.torch.promotion import cast_operand, common_type, operands
from qconvert.formats.torch.reading import Call, Operator, ReadFunction
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS", "emit_trunc", "read_binary"]


def read_quantized_binary(kind: str, activation: str = "") -> Operator:
    """quantized::add, mul and their forms with a Relu: float values, rounded to the quantization that the call states."""

    def read(c: Call) -> Ref:
        quantization = c.quantization(dtype=c.operand("qa").dtype)
        return c.emit(kind, [c.name("qa"), c.name("qb")], quantization=quantization, activation=activation)

    return Operator("q qa, q qb, f scale, i zero_point", read)


def _mark_number(c: Call, ref: Ref, *values: Any) -> Ref:
    """A result, which is a number if all operands are."""
    return Ref(ref.name, number=not any(isinstance(value, Ref) and not value.number for value in values))


def _emit_binary(c: Call, kind: str, names: Sequence[str], dtype: str, hint: str = "") -> Ref:
    """One operator on two plain operands."""
    if any(c.lookup(name).is_quantized for name in names):
        raise c.unsupported_error("quantized data", rule="quantized-data")
    return c.emit(kind, names, dtype=dtype, quantization=None, hint=hint)


def read_binary(kind: str, real: bool = False) -> ReadFunction:
    """An operator of two operands of one type; see promotion.py."""

    def read(c: Call) -> Ref:
        names, dtype = operands(c, "self", "other", real=real)
        return _mark_number(c, _emit_binary(c, kind, names, dtype), c["self"], c["other"])

    return read


def read_sum(kind: str, turned: bool = False) -> ReadFunction:
    """aten::add, sub: a ± alpha * b, and rsub: b - alpha * a."""

    def read(c: Call) -> Ref:
        (first, second), dtype = operands(c, "self", "other")
        if turned:
            first, second = second, first
        if dtype == "bool":
            raise c.unsupported_error("boolean data", rule="dtype-not-covered")
        alpha, scaled = c["alpha"], c["self" if turned else "other"]
        if alpha != 1 and isinstance(scaled, (int, float)) and isinstance(alpha, (int, float)):
            second = cast_operand(c, scaled * alpha, dtype, "scaled")
        elif alpha != 1:
            second = _emit_binary(c, "Mul", [second, cast_operand(c, alpha, dtype, "alpha")], dtype, "scaled").name
        return _mark_number(c, _emit_binary(c, kind, [first, second], dtype), c["self"], c["other"])

    return read


def read_division(c: Call) -> Ref:
    """aten::div: of float values, or rounded ("floor", "trunc"), which keeps integers."""
    mode = c.get("rounding_mode")
    if mode is None:
        names, dtype = operands(c, "self", "other", real=True)
        return _mark_number(c, _emit_binary(c, "Div", names, dtype), c["self"], c["other"])
    if mode not in ("floor", "trunc"):
        raise c.invalid(f"the rounding mode is {mode!r}", rule="unknown-word")
    names, dtype = operands(c, "self", "other")
    if mode == "floor":
        return _mark_number(c, _emit_binary(c, "FloorDiv", names, dtype), c["self"], c["other"])
    if dtype not in REALS:
        return _mark_number(c, _emit_binary(c, "Div", names, dtype), c["self"], c["other"])
    return _mark_number(c, emit_trunc(c, _emit_binary(c, "Div", names, dtype, "quotient").name), c["self"], c["other"])


def emit_trunc(c: Call, name: str) -> Ref:
    """Float values without their fractions: sign(x) * floor(|x|)."""
    sign = c.emit("Sign", [name], quantization=None, hint="sign").name
    whole = c.emit("Floor", [c.emit("Abs", [name], quantization=None, hint="magnitude").name], quantization=None, hint="whole").name
    return c.emit("Mul", [sign, whole], quantization=None)


_POWERS = {2: "Square", 0.5: "Sqrt", -0.5: "Rsqrt", -1: "Reciprocal"}


def read_power(c: Call) -> Ref:
    """aten::pow; a square, a root and their reciprocals are operators of their own."""
    power = c["exponent"]
    wanted = common_type(c, [c["self"], power])
    if isinstance(power, (int, float)) and power in _POWERS and wanted in REALS and isinstance(c["self"], Ref):
        return _mark_number(c, c.emit(_POWERS[power], [cast_operand(c, c["self"], wanted, "self")], quantization=None), c["self"])
    if power == 2 and isinstance(power, int) and isinstance(c["self"], Ref):
        return _mark_number(c, _emit_binary(c, "Mul", [c["self"].name] * 2, wanted), c["self"])
    names, dtype = operands(c, "self", "exponent")
    return _mark_number(c, _emit_binary(c, "Pow", names, dtype), c["self"], power)


def read_weighted(kind: str, first: str, second: str, base: str = "self") -> ReadFunction:
    """aten::addcmul and addcdiv: x + value * a ∘ b."""

    def read(c: Call) -> Ref:
        names, dtype = operands(c, base, first, second, real=kind == "Div")
        term = _emit_binary(c, kind, names[1:], dtype, "term").name
        if c["value"] != 1:
            term = _emit_binary(c, "Mul", [term, cast_operand(c, c["value"], dtype, "value")], dtype, "scaled").name
        return _emit_binary(c, "Add", [names[0], term], dtype)

    return read


def read_lerp(c: Call) -> Ref:
    """aten::lerp: x + weight * (end - x)."""
    (start, end, weight), dtype = operands(c, "self", "end", "weight", real=True)
    way = _emit_binary(c, "Sub", [end, start], dtype, "difference").name
    return _emit_binary(c, "Add", [start, _emit_binary(c, "Mul", [way, weight], dtype, "part").name], dtype)


def read_outer(c: Call) -> Ref:
    """aten::outer: each element of one list times each of another."""
    (first, second), dtype = operands(c, "self", "vec2")
    upright = c.emit("Unsqueeze", [first, c.list64([1], "axis")], hint="upright").name
    return _emit_binary(c, "Mul", [upright, second], dtype)


def read_cosine(c: Call) -> Ref:
    """aten::cosine_similarity: the sum of products over the product of both lengths, each at least eps."""
    (first, second), dtype = operands(c, "x1", "x2", real=True)
    rank = max(c.rank("x1"), c.rank("x2"))
    axes = c.list64([c.axis(c.integer("dim"), rank) - rank], "axes")
    products = _emit_binary(c, "Mul", [first, second], dtype, "products").name
    total = c.emit("ReduceSum", [products, axes], quantization=None, hint="total", keepdims=0).name
    lowest = c.real_constant(c.number("eps"), first, "eps")
    lengths = []
    for name, hint in ((first, "first"), (second, "second")):
        if c.lookup(name).shape != c.lookup(products).shape:  # what is repeated counts as often
            whole = c.emit("Shape", [products], dtype="int64", quantization=None, hint=f"{hint}/shape").name
            name = c.emit("Expand", [name, whole], quantization=None, hint=f"{hint}/whole").name
        length = c.emit("ReduceL2", [name, axes], quantization=None, hint=f"{hint}/length", keepdims=0).name
        lengths.append(c.emit("Max", [length, lowest], quantization=None, hint=f"{hint}/bounded").name)
    return _emit_binary(c, "Div", [total, _emit_binary(c, "Mul", lengths, dtype, "lengths").name], dtype)


def read_shift(left: bool) -> ReadFunction:
    """x << n and x >> n of integers: the product with a power of two, or the quotient rounded down."""

    def read(c: Call) -> Ref:
        count, tensor = c.integer("other"), c.operand("self")
        if not 0 <= count < 31 or tensor.dtype not in ("int8", "int16", "int32", "int64") or tensor.is_quantized:
            raise c.unsupported_error(f"{tensor.dtype} and a shift by {count}", rule="dtype-not-covered")
        return _emit_binary(c, "Mul" if left else "FloorDiv", [tensor.name, cast_operand(c, 2**count, tensor.dtype, "power")], tensor.dtype)

    return read


_SUM = "x self, x other, f alpha=1"
_PAIR = "x self, x other"

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "quantized::add": [read_quantized_binary("Add"), *SCALAR_SUM],
    "quantized::add_relu": [read_quantized_binary("Add", "relu"), *SCALAR_SUM_RELU],
    "quantized::mul": [read_quantized_binary("Mul"), *SCALAR_PRODUCT],
    "quantized::mul_relu": [read_quantized_binary("Mul", "relu"), *SCALAR_PRODUCT_RELU],
    "aten::add": Operator(_SUM, read_sum("Add")),
    "aten::sub": Operator(_SUM, read_sum("Sub")),
    "aten::subtract": Operator(_SUM, read_sum("Sub")),
    "aten::rsub": Operator(_SUM, read_sum("Sub", turned=True)),
    **{f"aten::{name}": Operator(_PAIR, read_binary("Mul")) for name in ("mul", "multiply")},
    **{
        f"aten::{name}": [Operator(_PAIR, read_division), Operator(f"{_PAIR}, s? rounding_mode", read_division)]
        for name in ("div", "divide")
    },
    "aten::true_divide": Operator(_PAIR, read_division),
    "aten::floor_divide": Operator(_PAIR, read_binary("FloorDiv")),
    "aten::remainder": Operator(_PAIR, read_binary("FloorMod")),
    "aten::fmod": Operator(_PAIR, read_binary("Mod")),
    "aten::pow": Operator("x self, x exponent", read_power),
    **{f"aten::{name}": Operator(_PAIR, read_binary("Max")) for name in ("maximum", "fmax")},
    **{f"aten::{name}": Operator(_PAIR, read_binary("Min")) for name in ("minimum", "fmin")},
    **{f"aten::{name}": Operator(_PAIR, read_binary("Atan2", real=True)) for name in ("atan2", "arctan2")},
    **{f"aten::{name}": Operator("T self, T vec2", read_outer) for name in ("outer", "ger")},
    "aten::cosine_similarity": Operator("T x1, T x2, i dim=1, f eps=1e-08", read_cosine),
    "aten::addcmul": Operator("T self, T tensor1, T tensor2, f value=1", read_weighted("Mul", "tensor1", "tensor2")),
    "aten::addcdiv": Operator("T self, T tensor1, T tensor2, f value=1", read_weighted("Div", "tensor1", "tensor2")),
    **{f"aten::{name}": Operator("T self, i other", read_shift(left=True)) for name in ("__lshift__", "bitwise_left_shift")},
    **{f"aten::{name}": Operator("T self, i other", read_shift(left=False)) for name in ("__rshift__", "bitwise_right_shift")},
    "aten::lerp": Operator("T self, T end, x weight", read_lerp),
}
