"""Functions of bits, and the elementwise operators of StableHLO that LiteRT runs: these come back as TFLite's own."""

from __future__ import annotations

from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op, numpy_dtype

__all__ = ["READERS", "WRITERS"]


def _plain(kind: str, of_truth: str = "") -> ReadFunction:
    """The reader of an operator of plain numbers, which is `of_truth` of truth values."""

    def read(r: Reading) -> None:
        require_equal(r)
        r.emit_plain(of_truth if of_truth and r.tensor().dtype == "bool" else kind)

    return read


def require_equal(r: Reading) -> None:
    """The kernels of StableHLO's operators take operands of one shape, and read beyond them otherwise."""
    shapes = [r.tensor(index).static_shape for index in (0, 1)]
    if r.name.startswith("STABLEHLO_") and None not in shapes and shapes[0] != shapes[1]:
        raise r.invalid(f"operands of shapes {shapes[0]} and {shapes[1]}")


def _shift(direction: str) -> ReadFunction:
    """RIGHT_SHIFT and STABLEHLO_SHIFT_LEFT."""

    def read(r: Reading) -> None:
        require_equal(r)
        r.emit_plain("BitShift", direction=direction)

    return read


def read_bitcast(r: Reading) -> None:
    """BITCAST. A type of another size takes, or gives, a last axis."""
    sizes = [numpy_dtype(tensor.dtype).itemsize for tensor in (r.tensor(), r.result())]
    ratio = sizes[0] // sizes[1] if sizes[0] >= sizes[1] else -(sizes[1] // sizes[0])
    r.emit_plain("Bitcast", to=r.result().dtype, ratio=ratio)


READERS: dict[str, ReadFunction] = {
    "BITWISE_XOR": _plain("BitwiseXor"),
    "RIGHT_SHIFT": _shift("RIGHT"),
    "BITCAST": read_bitcast,
    "STABLEHLO_ADD": _plain("Add", "Or"),
    "STABLEHLO_MULTIPLY": _plain("Mul", "And"),
    "STABLEHLO_MAXIMUM": _plain("Max", "Or"),
    "STABLEHLO_MINIMUM": _plain("Min", "And"),
    "STABLEHLO_AND": _plain("BitwiseAnd", "And"),
    "STABLEHLO_SHIFT_LEFT": _shift("LEFT"),
}


def write_xor(op: Op, w: Writing) -> None:
    """BITWISE_XOR."""
    w.emit("BITWISE_XOR", op.inputs, op.outputs, "BitwiseXorOptions")


def write_and(op: Op, w: Writing) -> None:
    """STABLEHLO_AND, which knows no broadcasting."""
    if len({w.tensor(name).shape for name in op.inputs}) > 1:
        raise w.unsupported(op, "operands of different shapes")
    w.emit("STABLEHLO_AND", op.inputs, op.outputs)


def write_shift(op: Op, w: Writing) -> None:
    """RIGHT_SHIFT, or STABLEHLO_SHIFT_LEFT, which knows no broadcasting."""
    if op["direction"] == "RIGHT":
        w.emit("RIGHT_SHIFT", op.inputs, op.outputs, "RightShiftOptions")
        return
    if len({w.tensor(name).shape for name in op.inputs}) > 1:
        raise w.unsupported(op, "operands of different shapes")
    w.emit("STABLEHLO_SHIFT_LEFT", op.inputs, op.outputs, "StablehloShiftLeftOptions")


def write_bitcast(op: Op, w: Writing) -> None:
    """BITCAST."""
    w.emit("BITCAST", op.inputs, op.outputs, "BitcastOptions")


WRITERS: dict[str, WriteFunction] = {
    "BitwiseXor": write_xor,
    "BitwiseAnd": write_and,
    "BitShift": write_shift,
    "Bitcast": write_bitcast,
}
