"""Arithmetic on one tensor and on pairs of tensors, with broadcasting; comparisons, functions of bits, and the elementwise operators of
StableHLO that LiteRT runs, which come back as TFLite's own. LiteRT's kernels of bytes compare 256 times the float values, rounded to
integers (comparisons.cc)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic import dequantize_float32, tflite_comparison_tables
from qconvert.formats.tflite.ops.one_to_one import make_reader, make_writer
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.tensors import DTYPE_NUMBERS
from qconvert.formats.tflite.writing import WriteFunction, Writers, Writing
from qconvert.graph import Array, Op, Tensor, integer_range, numpy_dtype
from qconvert.operators import kind_of


def _read_fused(kind: str, scaled: tuple[str, ...], r: Reading) -> None:
    """An operator with a fused activation, whose kernels of the types `scaled` need scales."""
    r.require_scales(*scaled)
    r.emit(kind, activation=r.activation())


def read_select(r: Reading) -> None:
    """SELECT: a condition of rank 1 chooses whole rows of the first axis; otherwise shapes are equal."""
    condition, data = r.tensor(0), r.tensor(1)
    if condition.rank != 1 or data.rank in (None, 0, 1) or condition.shape is None:
        r.emit_stored("Where")
        return
    assert data.rank is not None
    shape = r.list64([-1, *[1] * (data.rank - 1)], "condition_shape")
    rows = r.emit_new("Reshape", [condition.name, shape], "condition", "bool", (*condition.shape, *[1] * (data.rank - 1)))
    r.emit_stored("Where", [rows, *r.inputs[1:]])


def read_cast(r: Reading) -> None:
    """CAST: stored numbers change type, whatever their quantization."""
    r.emit("Cast", to=r.result().dtype)


def read_atan2(r: Reading) -> None:
    """ATAN2."""
    require_equal(r)
    r.emit("Atan2")


def _write_stored(builtin: str, op: Op, w: Writing) -> None:
    """A kernel that compares or chooses stored integers: all data must have one quantization."""
    w.require_one_quantization(op)
    w.emit(builtin, op.inputs, op.outputs)


#: Types of plain numbers that the kernels of TFLite's own operators do not have, and those for which sums and products want scales.
_NO_KERNEL, _SCALED = ("uint16", "uint32", "uint64", "float64"), ("int8", "uint8")


def _write_plain_as(builtin: str, types: tuple[str, ...], usual: WriteFunction, op: Op, w: Writing) -> None:
    """An operator of StableHLO where all are plain numbers of one shape and of one of `types`: its kernel takes integers of any width."""
    tensors = [w.tensor(name) for name in op.names]
    fits = all(t.dtype in types and not t.is_quantized and t.shape == tensors[0].shape for t in tensors)
    if fits and not op.attributes.get("activation"):
        w.emit(builtin, op.inputs, op.outputs)
    else:
        usual(op, w)


def write_arithmetic(op: Op, w: Writing) -> None:
    """Add, Sub, Mul and Div. Sums of int16 use the kernel without power-of-two scales."""
    fields: dict[str, Any] = {"potScaleInt16": False} if kind_of(op).sum_sign else {}
    w.emit(op.kind.upper(), op.inputs, op.outputs, fusedActivationFunction=w.activation(op), **fields)


def write_div(op: Op, w: Writing) -> None:
    """Div; LiteRT divides no int64."""
    if w.result(op).dtype == "int64" and all(_is_of_sizes(w, name) for name in op.inputs):
        _write_quotient_of_sizes(op, w)
    elif divisor := _small_divisor(op, w):
        _write_quotient_by(op, w, divisor)
    else:
        write_arithmetic(op, w)


#: How many operators that sizes are computed with are followed.
_LONGEST_CHAIN = 100


def _is_of_sizes(w: Writing, name: str) -> bool:
    """Whether the integers `name` are computed of sizes of tensors and small constants alone, so that they fit int32."""
    waiting, seen = [name], {name}
    while waiting and len(seen) < _LONGEST_CHAIN:
        current = waiting.pop()
        op, data = w.producer(current), w.tensor(current).data
        kind = None if op is None else kind_of(op)
        if kind is not None and kind.lists_sizes:
            continue
        if data is not None and data.dtype.kind in "iu" and data.size and abs(data.astype(np.float64)).max() < 2**16:
            continue
        if op is None or kind is None or not (kind.by_place or kind.polynomial) or "int" not in w.tensor(current).dtype:
            return False
        new = [other for other in kind.moved_inputs(op) if other not in seen]
        waiting += new
        seen.update(new)
    return not waiting


def _write_quotient_of_sizes(op: Op, w: Writing) -> None:
    """DIV of int32, as LiteRT has none of int64, in which ONNX computes sizes."""
    narrow = w.add(f"{op.outputs[0]}/int32", "int32", w.result(op).shape)
    w.emit("DIV", [w.index(op, position) for position in (0, 1)], [narrow])
    w.emit("CAST", [narrow], op.outputs)


#: The largest divisor of which a quotient of int64 is a mean of that many numbers.
_MOST_PARTS = 1024


def _small_divisor(op: Op, w: Writing) -> int:
    """The constant that int64 is divided by, if it is one number from 2 to _MOST_PARTS; else 0."""
    data, divisor, result = w.operand(op), w.operand(op, 1), w.result(op)
    if result.dtype != "int64" or divisor.data is None or divisor.data.size != 1 or data.rank is None or data.shape != result.shape:
        return 0
    value = int(divisor.data.reshape(-1)[0])
    return value if 1 < value <= _MOST_PARTS and data.rank < 5 else 0


def _write_quotient_by(op: Op, w: Writing, divisor: int) -> None:
    """The MEAN of x and of divisor - 1 zeros: LiteRT divides no int64, but the sum of a mean, whose quotient it cuts off as ONNX does."""
    data, result = w.operand(op), op.outputs[0]
    sizes = tuple(data.shape or ())
    (one, many) = (w.add(f"{result}/{hint}", "int64", (count, *sizes)) for hint, count in (("one", 1), ("parts", divisor)))
    paddings = np.zeros((1 + len(sizes), 2), np.int32)
    paddings[0, 1] = divisor - 1
    w.emit("EXPAND_DIMS", [data.name, w.const(np.int32(0), f"{result}/axis")], [one])
    w.emit("PAD", [one, w.const(paddings, f"{result}/paddings")], [many])
    w.emit("MEAN", [many, w.ints([0], f"{result}/axes")], [result], keepDims=False)


def write_where(op: Op, w: Writing) -> None:
    """Where as SELECT_V2, or as SELECT if its condition is the Reshape that the reader put before a choice of rows."""
    reshape = w.producer(op.inputs[0], "Reshape")
    w.require_one_quantization(op)
    if reshape is None or not w.is_inner(op.inputs[0], "condition"):
        w.emit("SELECT_V2", op.inputs, op.outputs)
        return
    w.retract(reshape)
    w.emit("SELECT", [reshape.inputs[0], *op.inputs[1:]], op.outputs)


def write_cast(op: Op, w: Writing) -> None:
    """Cast as CAST; constants of float16 go through DEQUANTIZE, as converters write them."""
    data, result = w.operand(op), w.result(op)
    if data.is_constant and (data.dtype, result.dtype) == ("float16", "float32"):
        w.emit("DEQUANTIZE", op.inputs, op.outputs)
        return
    for tensor in (data, result):
        if tensor.dtype not in DTYPE_NUMBERS:
            raise w.unsupported_error(op, f"{tensor.name!r} of type {tensor.dtype}", rule="operand-types")
    w.emit("CAST", op.inputs, op.outputs)


def write_atan2(op: Op, w: Writing) -> None:
    """ATAN2, which knows no broadcasting."""
    if len({w.tensor(name).shape for name in op.inputs}) > 1:
        raise w.unsupported_error(op, "operands of different shapes", rule="shape-mismatch")
    w.emit("ATAN2", op.inputs, op.outputs)


def write_pow(op: Op, w: Writing) -> None:
    """POW, whose operands have one type; ONNX's exponent may have another."""
    base, power = w.operand(op), w.operand(op, 1)
    name = power.name
    if power.dtype != base.dtype and base.dtype == "float32" and not power.is_quantized:
        hint = f"{op.outputs[0]}/power"
        known = None if power.data is None else w.const(power.data.astype(np.float32), hint)
        name = known or w.emit_new("CAST", [power.name], hint, "float32", power.shape)
    w.emit("POW", [base.name, name], op.outputs)


_BYTES = ("int8", "uint8")


def _read_comparison(kind: str, r: Reading) -> None:
    """A comparison; orders of int16 are of stored integers, and EQUAL has no such kernel."""
    first, second = r.tensor(0), r.tensor(1)
    if first.dtype == "int16" and kind not in ("Equal", "NotEqual"):
        r.emit_stored(kind)
        return
    if kind == "NotEqual":
        r.require_scales("int16")
    tables = _comparison_tables(first, second)
    if not tables:
        r.emit(kind)
        return
    r.require_sound(r.inputs)
    r.emit(kind, [_look_up_operand(r, index, table) for index, table in enumerate(tables)])


def _comparison_tables(first: Tensor, second: Tensor) -> list[Array]:
    """The numbers that the kernel compares, for each of the 256 values of either operand; none where the operator is one in float.

    Such operands have values, those of a constant alone, whose order the kernel keeps, or a result that C does not define (then
    checking/expected_values.py reports the source).
    """
    if first.dtype != second.dtype or first.dtype not in _BYTES or first.per_tensor is None or second.per_tensor is None:
        return []
    low, high = integer_range(first.dtype)
    found, compared, exact = list[Array](), list[Array](), list[Array]()
    for tensor, quantization in ((first, first.per_tensor), (second, second.per_tensor)):
        tables = tflite_comparison_tables(quantization, tensor.dtype)
        if len(tables) > 1:
            return []
        stored = np.arange(low, high + 1) if tensor.data is None else np.unique(tensor.data).astype(np.int64)
        found += tables
        compared.append(tables[0][stored - low].astype(np.float64))
        exact.append(dequantize_float32(stored, quantization))
    order, expected = (np.sign(np.subtract.outer(*values)) for values in (compared, exact))
    return [] if np.array_equal(order, expected) else found


def _look_up_operand(r: Reading, index: int, table: Array) -> str:
    """An operand looked up in its table."""
    name = r.input(index)
    tensor = r.lookup(name)
    low, _ = integer_range(tensor.dtype)
    place = r.intermediate("place", "int64", tensor.shape, base=name)
    r.emit("Cast", [r.reinterpret(name, None)], [place], to="int64")
    if low:
        moved = r.intermediate("place_from_zero", "int64", tensor.shape, base=name)
        r.emit("Add", [place, r.const(np.int64(-low), "lowest")], [moved])
        place = moved
    found = r.intermediate("steps", "int32", tensor.shape, base=name)
    return r.emit("Gather", [r.const(table, "table"), place], [found], axis=0)[0]


#: TFLite's comparisons -> canonical kinds.
COMPARISONS = {"EQUAL": "Equal", "NOT_EQUAL": "NotEqual", "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual", "LESS": "Less",
          "LESS_EQUAL": "LessOrEqual"}  # fmt: skip


def _read_stablehlo(kind: str, of_truth: str, r: Reading) -> None:
    """An operator of plain numbers, which is `of_truth` of truth values."""
    require_equal(r)
    r.emit_plain(of_truth if r.tensor().dtype == "bool" else kind)


def require_equal(r: Reading) -> None:
    """The kernels of ATAN2 and of StableHLO's operators take operands of one shape, and read beyond them otherwise."""
    shapes = [r.tensor(index).static_shape for index in (0, 1)]
    if None not in shapes and shapes[0] != shapes[1]:
        raise r.invalid(f"operands of shapes {shapes[0]} and {shapes[1]}", rule="shape-mismatch")


def read_shift_left(r: Reading) -> None:
    require_equal(r)
    r.emit_plain("BitShift", direction="LEFT")


def read_bitcast(r: Reading) -> None:
    """BITCAST. A type of another size takes, or gives, a last axis."""
    sizes = [numpy_dtype(tensor.dtype).itemsize for tensor in (r.tensor(), r.result())]
    ratio = sizes[0] // sizes[1] if sizes[0] >= sizes[1] else -(sizes[1] // sizes[0])
    r.emit_plain("Bitcast", to=r.result().dtype, ratio=ratio)


def write_xor(op: Op, w: Writing) -> None:
    """BITWISE_XOR."""
    _require_narrow(op, w)
    w.emit("BITWISE_XOR", op.inputs, op.outputs)


def _broadcast_operands(op: Op, w: Writing) -> list[str]:
    """The operands, broadcast to the result's shape: StableHLO's operators do not broadcast."""
    result, found = w.result(op), []
    for name in op.inputs:
        if w.tensor(name).shape == result.shape:
            found.append(name)
            continue
        if result.static_shape is None:
            raise w.unsupported_error(op, "operands of different shapes, one of which has a dynamic dimension,", rule="dynamic-dimension")
        found.append(w.like(f"{op.outputs[0]}/operand", name, result.shape))
        w.emit("BROADCAST_TO", [name, w.ints(result.static_shape, f"{op.outputs[0]}/shape")], [found[-1]])
    return found


def _require_narrow(op: Op, w: Writing) -> None:
    """BITWISE_XOR and RIGHT_SHIFT fail at integers of 64 bits when they run (bitwise_xor.cc, right_shift.cc)."""
    if w.result(op).dtype in ("int64", "uint64"):
        raise w.unsupported_error(op, "integers of 64 bits", rule="operand-types")


def write_or(op: Op, w: Writing) -> None:
    """The bits of either operand: those of one alone, and those of both."""
    _require_narrow(op, w)
    result, operands = op.outputs[0], _broadcast_operands(op, w)
    one, both = (w.like(f"{result}/{hint}", result, w.tensor(result).shape) for hint in ("one", "both"))
    w.emit("BITWISE_XOR", operands, [one])
    w.emit("STABLEHLO_AND", operands, [both])
    w.emit("BITWISE_XOR", [one, both], [result])


def write_and(op: Op, w: Writing) -> None:
    """STABLEHLO_AND."""
    w.emit("STABLEHLO_AND", _broadcast_operands(op, w), op.outputs)


def write_shift(op: Op, w: Writing) -> None:
    """RIGHT_SHIFT, or STABLEHLO_SHIFT_LEFT, whose kernel knows signed integers alone: the same bits."""
    _require_narrow(op, w)
    if op["direction"] == "RIGHT":
        w.emit("RIGHT_SHIFT", op.inputs, op.outputs)
        return
    operands, result = _broadcast_operands(op, w), w.result(op)
    if not result.dtype.startswith("uint"):
        w.emit("STABLEHLO_SHIFT_LEFT", operands, op.outputs)
        return
    signed = [w.add(f"{result.name}/{hint}", result.dtype.removeprefix("u"), result.shape) for hint in ("data", "amount", "shifted")]
    for name, same in zip(operands, signed, strict=False):
        w.emit("BITCAST", [name], [same])
    w.emit("STABLEHLO_SHIFT_LEFT", signed[:2], signed[2:])
    w.emit("BITCAST", signed[2:], op.outputs)


READERS: Readers = {
    "ADD": partial(_read_fused, "Add", ("int8", "uint8")),
    "SUB": partial(_read_fused, "Sub", ("int8", "uint8", "int16")),
    "MUL": partial(_read_fused, "Mul", ("int8", "uint8")),
    "DIV": partial(_read_fused, "Div", ("int8", "uint8", "int16")),
    "MAXIMUM": make_reader("Max", "stored"),
    "MINIMUM": make_reader("Min", "stored"),
    "POW": make_reader("Pow"),
    "ATAN2": read_atan2,
    "SELECT": read_select,
    "SELECT_V2": make_reader("Where", "stored"),
    "CAST": read_cast,
    **{name: partial(_read_comparison, kind) for name, kind in COMPARISONS.items()},
    "BITWISE_XOR": make_reader("BitwiseXor", "plain"),
    "RIGHT_SHIFT": make_reader("BitShift", "plain", direction="RIGHT"),
    "BITCAST": read_bitcast,
    "STABLEHLO_ADD": partial(_read_stablehlo, "Add", "Or"),
    "STABLEHLO_MULTIPLY": partial(_read_stablehlo, "Mul", "And"),
    "STABLEHLO_MAXIMUM": partial(_read_stablehlo, "Max", "Or"),
    "STABLEHLO_MINIMUM": partial(_read_stablehlo, "Min", "And"),
    "STABLEHLO_AND": partial(_read_stablehlo, "BitwiseAnd", "And"),
    "STABLEHLO_SHIFT_LEFT": read_shift_left,
}

WRITERS: Writers = {
    "Add": partial(_write_plain_as, "STABLEHLO_ADD", (*_SCALED, *_NO_KERNEL), write_arithmetic),
    "Mul": partial(_write_plain_as, "STABLEHLO_MULTIPLY", (*_SCALED, *_NO_KERNEL), write_arithmetic),
    "Sub": write_arithmetic,
    "Div": write_div,
    "Max": partial(_write_plain_as, "STABLEHLO_MAXIMUM", _NO_KERNEL, partial(_write_stored, "MAXIMUM")),
    "Min": partial(_write_plain_as, "STABLEHLO_MINIMUM", _NO_KERNEL, partial(_write_stored, "MINIMUM")),
    "Pow": write_pow,
    "Atan2": write_atan2,
    "Where": write_where,
    "Cast": write_cast,
    **{kind: make_writer(name) for name, kind in COMPARISONS.items()},
    "BitwiseXor": write_xor,
    "BitwiseAnd": write_and,
    "BitwiseOr": write_or,
    "BitShift": write_shift,
    "Bitcast": make_writer("BITCAST"),
}
