"""Arithmetic, comparisons and logic of two operands, element by element, and sums and products of a quantized tensor and a number.

With a number the quantization changes, and the integers where it cannot: ATen/native/quantized/cpu/BinaryOps.cpp (_add_scalar_out),
qmul.cpp (_mul_scalar_out). Comparisons are of float values where data are quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qconvert.arithmetic.storage import REALS
from qconvert.formats.torch.operands import Part, cast_operand, common_type, float_parts, operands
from qconvert.formats.torch.ops.create import COMPARISONS
from qconvert.formats.torch.quantizing import emit_dequantize
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments
from qconvert.formats.torch.values import Ref
from qconvert.graph import Quantization, integer_range, numpy_dtype
from qconvert.operators.values import Value, absolute, apply, maximum, reduce, sign


def _data(c: Reading) -> tuple[str, str, float, int]:
    """The quantized tensor: its name, its type, scale and zero point."""
    tensor = c.operand("qa")
    if tensor.quantization is None or not tensor.quantization.is_per_tensor:
        raise c.invalid("the data are not quantized with one scale", rule="not-per-tensor")
    return tensor.name, tensor.dtype, tensor.quantization.step, tensor.quantization.point


def _quantization(c: Reading, scale: float, zero_point: int) -> Quantization:
    """A quantization whose scale is rounded to float32."""
    real = np.float32(scale)
    if not np.isfinite(real) or real <= 0:
        raise c.invalid(f"the scale of the result is {scale}", rule="scale-not-positive")
    return Quantization.per_tensor(float(real), zero_point)


def read_scalar_sum(c: Reading, hint: str) -> str:
    """x + n: the zero point is shifted by n / scale, rounded. If it would leave the type, the scale is enlarged and the integers are
    requantized."""
    name, dtype, scale, zero_point = _data(c)
    low, high = integer_range(dtype)
    moved = float(np.rint(c.number("b") / scale))
    if not np.isfinite(moved) or abs(moved) > 2**31:
        raise c.unsupported_error(f"the number {c.number('b')} and the scale {scale}")
    steps = int(moved)
    if low <= zero_point - steps <= high:
        return c.emit("Reinterpret", [name], quantization=_quantization(c, scale, zero_point - steps), hint=hint)
    reached = high - (zero_point - steps) if steps > 0 else zero_point - steps - low
    quantization = _quantization(c, reached / (high - low) * scale, low if steps > 0 else high)
    return c.emit("Add", [name, _add_step_constant(c, steps, scale, dtype)], quantization=quantization, hint=hint)


def _add_step_constant(c: Reading, steps: int, scale: float, dtype: str) -> str:
    """A constant of a whole number of scale steps: a stored integer if it is within the type, else a float."""
    low, high = integer_range(dtype)
    zero_point = low if steps > 0 else high
    if low <= zero_point + steps <= high:
        return c.const(np.array(zero_point + steps, numpy_dtype(dtype)), "number", Quantization.per_tensor(scale, zero_point))
    return c.const(np.array(steps * scale, np.float32), "number")


def read_scalar_product(c: Reading, hint: str) -> str:
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
    return c.emit("Neg", [stretched], quantization=_quantization(c, abs(factor) * scale, low + high - zero_point), hint=hint)


def _with_relu(read: Callable[[Reading, str], str]) -> ReadFunction:
    """A Relu after it where the operator's name says so, with the quantization that it found."""
    return lambda c: c.emit("Relu", [read(c, "unclipped")]) if c.activation else read(c, "")


def _dequantize(c: Reading, name: str, hint: str) -> str:
    """A tensor as float values, if it is quantized."""
    return emit_dequantize(c, name, hint=f"{hint}/real") if c.lookup(name).is_quantized else name


@with_arguments
def read_comparison(c: Reading, kind: str) -> str:
    """aten::eq, ne, lt, le, gt, ge: of tensors, or of a tensor and a number."""
    names, _ = operands(c, "self", "other")
    plain = [_dequantize(c, name, hint) for name, hint in zip(names, ("self", "other"), strict=True)]
    return c.emit(kind, plain)


def _cast_to_bool(c: Reading, argument: str) -> str:
    name = _dequantize(c, cast_operand(c, c[argument], "bool", argument), argument)
    return name if c.lookup(name).dtype == "bool" else cast_operand(c, name, "bool", argument)


def read_logical(kind: str) -> ReadFunction:
    """aten::logical_and, or, xor: of what is not 0."""
    return lambda c: c.emit(kind, [_cast_to_bool(c, "self"), _cast_to_bool(c, "other")])


@with_arguments
def read_bitwise(c: Reading, kind: str) -> str:
    """aten::bitwise_and, or, xor, __and__ …: of truth values, or of the bits of whole numbers."""
    names, dtype = operands(c, "self", "other")
    if (dtype != "bool" and "int" not in dtype) or any(c.lookup(name).is_quantized for name in names):
        raise c.invalid(f"the data are {dtype}; bitwise operators require integers or booleans", rule="wrong-type")
    return c.emit(kind if dtype == "bool" else f"Bitwise{kind}", names)


def read_bitwise_not(c: Reading) -> str:
    """aten::bitwise_not: of truth values, or of the bits of whole numbers."""
    tensor = c.operand()
    if tensor.dtype == "bool":
        return c.emit("Not", [tensor.name])
    if tensor.is_quantized or "int" not in tensor.dtype:
        raise c.invalid(f"the data are {tensor.dtype}; bitwise operators require integers or booleans", rule="wrong-type")
    return c.emit("BitwiseNot", [tensor.name])


_ALIASES = {"eq": "__eq__", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
_BITWISE = {kind: (f"bitwise_{kind.lower()}", f"__{kind.lower()}__") for kind in ("And", "Or", "Xor")}


@with_arguments
def read_quantized_binary(c: Reading, kind: str) -> str:
    """quantized::add, mul and their forms with a Relu: float values, rounded to the quantization that the call states."""
    quantization = c.quantization(dtype=c.operand("qa").dtype)
    return c.emit(kind, [c.name("qa"), c.name("qb")], quantization=quantization, activation=c.activation)


@with_arguments
def _keep_numbers(c: Reading, read: Callable[[Reading], str]) -> Ref:
    """The read function of an operator on two operands, whose result is a number if both are."""
    name, given = read(c), (c["self"], c["exponent" if "exponent" in c else "other"])
    return Ref(name, number=not any(isinstance(value, Ref) and not value.number for value in given))


def _emit_binary(c: Reading, kind: str, names: Sequence[str], hint: str = "") -> str:
    """One operator on two plain operands."""
    c.require_plain(*names)
    return c.emit(kind, names, hint=hint)


def read_binary(kind: str, real: bool = False) -> ReadFunction:
    """An operator of two operands of one type; see formats/torch/operands.py."""

    @_keep_numbers
    def read(c: Reading) -> str:
        names, _ = operands(c, "self", "other", real=real)
        return _emit_binary(c, kind, names)

    return read


def read_sum(kind: str, turned: bool = False) -> ReadFunction:
    """aten::add, sub: a ± alpha * b, and rsub: b - alpha * a."""

    @_keep_numbers
    def read(c: Reading) -> str:
        (first, second), dtype = operands(c, "self", "other")
        if turned:
            first, second = second, first
        if dtype == "bool":
            raise c.unsupported_error("boolean data", rule="dtype-not-covered")
        alpha, scaled = c["alpha"], c["self" if turned else "other"]
        if alpha != 1 and isinstance(scaled, (int, float)) and isinstance(alpha, (int, float)):
            second = cast_operand(c, scaled * alpha, dtype, "scaled")
        elif alpha != 1:
            second = _emit_binary(c, "Mul", [second, cast_operand(c, alpha, dtype, "alpha")], "scaled")
        return _emit_binary(c, kind, [first, second])

    return read


@_keep_numbers
def read_division(c: Reading) -> Value:
    """aten::div: of float values, or rounded ("floor", "trunc"), which keeps integers."""
    mode = c.get("rounding_mode")
    if mode not in (None, "floor", "trunc"):
        raise c.invalid(f"the rounding mode is {mode!r}", rule="unknown-word")
    names, dtype = operands(c, "self", "other", real=mode is None)
    if mode == "trunc" and dtype in REALS:
        return truncate(Part(c, _emit_binary(c, "Div", names, "quotient")), hint="").name
    return _emit_binary(c, "FloorDiv" if mode == "floor" else "Div", names)


def truncate(x: Value, hint: str = "part") -> Value:
    """Float values without their fractions: sign(x) * floor(|x|)."""
    return apply("Mul", sign(x), apply("Floor", absolute(x)), hint=hint)


_POWERS = {2: "Square", 0.5: "Sqrt", -0.5: "Rsqrt", -1: "Reciprocal"}


@_keep_numbers
def read_power(c: Reading) -> str:
    """aten::pow; a square, a root and their reciprocals are operators of their own."""
    power = c["exponent"]
    wanted = common_type(c, [c["self"], power])
    if isinstance(power, (int, float)) and power in _POWERS and wanted in REALS and isinstance(c["self"], Ref):
        return c.emit(_POWERS[power], [cast_operand(c, c["self"], wanted, "self")], quantization=None)
    if power == 2 and isinstance(power, int) and isinstance(c["self"], Ref):
        return _emit_binary(c, "Mul", [c["self"].name] * 2)
    names, _ = operands(c, "self", "exponent")
    return _emit_binary(c, "Pow", names)


@with_arguments
def read_weighted(c: Reading, kind: str) -> Value:
    """aten::addcmul and addcdiv: x + value * a ∘ b."""
    names, dtype = operands(c, "self", "tensor1", "tensor2", real=kind == "Div")
    c.require_plain(*names)
    x, a, b = (Part(c, name) for name in names)
    term = apply(kind, a, b)
    if c["value"] != 1:
        term = term * Part(c, cast_operand(c, c["value"], dtype, "value"))
    return apply("Add", x, term, hint="")


def read_lerp(c: Reading) -> Value:
    """aten::lerp: x + weight * (end - x)."""
    start, end, weight = float_parts(c, "self", "end", "weight")
    return apply("Add", start, (end - start) * weight, hint="")


def read_outer(c: Reading) -> str:
    """aten::outer: each element of one list times each of another."""
    (first, second), _ = operands(c, "self", "vec2")
    upright = c.emit("Unsqueeze", [first, c.list64([1], "axis")], hint="upright")
    return _emit_binary(c, "Mul", [upright, second])


def read_cosine(c: Reading) -> Value:
    """aten::cosine_similarity: the sum of products over the product of both lengths, each at least eps."""
    sides, rank = float_parts(c, "x1", "x2"), max(c.rank("x1"), c.rank("x2"))
    axes = [c.axis(c.integer("dim"), rank) - rank]
    products = sides[0] * sides[1]
    lengths = []
    for side in sides:
        if c.lookup(side.name).shape != c.lookup(products.name).shape:  # what is repeated counts as often
            side = apply("Expand", side, apply("Shape", products))
        lengths.append(maximum(reduce("ReduceL2", side, axes, keepdims=False), c.number("eps")))
    return apply("Div", reduce("ReduceSum", products, axes, keepdims=False), lengths[0] * lengths[1], hint="")


@with_arguments
def read_shift(c: Reading, left: bool) -> str:
    """x << n and x >> n of integers: the product with a power of two, or the quotient rounded down."""
    count, tensor = c.integer("other"), c.operand()
    if not 0 <= count < 31 or tensor.dtype not in ("int8", "int16", "int32", "int64") or tensor.is_quantized:
        raise c.unsupported_error(f"{tensor.dtype} and a shift by {count}", rule="dtype-not-covered")
    return _emit_binary(c, "Mul" if left else "FloorDiv", [tensor.name, cast_operand(c, 2**count, tensor.dtype, "power")])


_SUM = "x self, x other, f alpha=1"
_PAIR = "x self, x other"
_QUANTIZED = "q qa, q qb, f scale, i zero_point"
#: The number after the tensor, and before it.
_SCALAR = ("q qa, x b", "f b, q qa")

OPERATORS: Mapping[str, ReadFunction] = {
    **{f"aten::{name}|{_ALIASES[name]}(T self, x other)": read_comparison(kind) for name, kind in COMPARISONS.items()},
    **{f"aten::logical_{kind.lower()}(T self, T other)": read_logical(kind) for kind in ("And", "Or", "Xor")},
    **{f"aten::{name}(x self, x other)": read_bitwise(kind) for (kind, names) in _BITWISE.items() for name in names},
    "aten::logical_not(T self)": lambda c: c.emit("Not", [_cast_to_bool(c, "self")]),
    "aten::bitwise_not|__not__(T self)": read_bitwise_not,
    f"quantized::add|add_relu({_QUANTIZED})": read_quantized_binary("Add"),
    f"quantized::mul|mul_relu({_QUANTIZED})": read_quantized_binary("Mul"),
    **{f"quantized::add|add_scalar|add_relu|add_scalar_relu({form})": _with_relu(read_scalar_sum) for form in _SCALAR},
    **{f"quantized::mul|mul_scalar|mul_relu|mul_scalar_relu({form})": _with_relu(read_scalar_product) for form in _SCALAR},
    f"aten::add({_SUM})": read_sum("Add"),
    f"aten::sub|subtract({_SUM})": read_sum("Sub"),
    f"aten::rsub({_SUM})": read_sum("Sub", turned=True),
    f"aten::mul|multiply({_PAIR})": read_binary("Mul"),
    f"aten::div|divide|true_divide({_PAIR})": read_division,
    f"aten::div|divide({_PAIR}, s? rounding_mode)": read_division,
    f"aten::floor_divide({_PAIR})": read_binary("FloorDiv"),
    f"aten::remainder({_PAIR})": read_binary("FloorMod"),
    f"aten::fmod({_PAIR})": read_binary("Mod"),
    "aten::pow(x self, x exponent)": read_power,
    f"aten::maximum|fmax({_PAIR})": read_binary("Max"),
    f"aten::minimum|fmin({_PAIR})": read_binary("Min"),
    f"aten::atan2|arctan2({_PAIR})": read_binary("Atan2", real=True),
    "aten::outer|ger(T self, T vec2)": read_outer,
    "aten::cosine_similarity(T x1, T x2, i dim=1, f eps=1e-08)": read_cosine,
    "aten::addcmul(T self, T tensor1, T tensor2, f value=1)": read_weighted("Mul"),
    "aten::addcdiv(T self, T tensor1, T tensor2, f value=1)": read_weighted("Div"),
    "aten::__lshift__|bitwise_left_shift(T self, i other)": read_shift(left=True),
    "aten::__rshift__|bitwise_right_shift(T self, i other)": read_shift(left=False),
    "aten::lerp(T self, T end, x weight)": read_lerp,
}
