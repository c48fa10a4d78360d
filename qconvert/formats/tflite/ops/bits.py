"""Functions of bits, and the elementwise operators of StableHLO that LiteRT runs: these come back as TFLite's own."""

from __future__ import annotations

from functools import partial

from qconvert.formats.tflite.ops.one_to_one import make_reader, make_writer
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op, numpy_dtype


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


READERS: dict[str, ReadFunction] = {
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


def write_xor(op: Op, w: Writing) -> None:
    """BITWISE_XOR."""
    _require_narrow(op, w)
    w.emit("BITWISE_XOR", op.inputs, op.outputs)


def _broadcast_operands(op: Op, w: Writing) -> list[str]:
    """The operands, broadcast to the result's shape: StableHLO's operators do not broadcast."""
    result, found = w.tensor(op.outputs[0]), []
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
    if w.tensor(op.outputs[0]).dtype in ("int64", "uint64"):
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
    operands, result = _broadcast_operands(op, w), w.tensor(op.outputs[0])
    if not result.dtype.startswith("uint"):
        w.emit("STABLEHLO_SHIFT_LEFT", operands, op.outputs)
        return
    signed = [w.add(f"{result.name}/{hint}", result.dtype.removeprefix("u"), result.shape) for hint in ("data", "amount", "shifted")]
    for name, same in zip(operands, signed, strict=False):
        w.emit("BITCAST", [name], [same])
    w.emit("STABLEHLO_SHIFT_LEFT", signed[:2], signed[2:])
    w.emit("BITCAST", signed[2:], op.outputs)


WRITERS: dict[str, WriteFunction] = {
    "BitwiseXor": write_xor,
    "BitwiseAnd": write_and,
    "BitwiseOr": write_or,
    "BitShift": write_shift,
    "Bitcast": make_writer("BITCAST"),
}
