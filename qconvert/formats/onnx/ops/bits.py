"""Functions of the bits of integers."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.reading import ReadFunction, Reading
from qconvert.formats.onnx.steps import Steps
from qconvert.graph import Op, numpy_dtype

__all__ = ["READERS", "WRITERS"]


def write_bitwise(op: Op, b: Builder) -> None:
    """BitwiseAnd, BitwiseOr and BitwiseXor (opset 18)."""
    b.node(op.kind, [b.stored(name) for name in op.inputs], op.outputs)


def write_bit_shift(op: Op, b: Builder) -> None:
    """BitShift, which ONNX has of unsigned integers. To the left, signed ones have the same bits; to the right, -1 - x, which is not
    negative where x is, is shifted instead. TFLite's kernels shift to the right by fewer than all bits, and by as many to the left give 0.
    """
    s, dtype = Steps(op, b), b.tensor(op.outputs[0]).dtype
    data, by = (b.stored(name) for name in op.inputs)
    wide = {"uint16": "uint32", "int8": "uint8", "int16": "uint32", "int32": "uint32", "int64": "uint64"}.get(dtype, dtype)
    if wide == dtype and b.graph.is_from("onnx"):
        b.node("BitShift", [data, by], op.outputs, direction=op["direction"])
        return
    bits, known = numpy_dtype(dtype).itemsize * 8, b.graph.constant(op.inputs[1])
    number = "int64" if bits > 31 else "int32"
    is_inside = known is not None and bool((known.astype(np.int64) >= 0).all() and (known.astype(np.int64) < bits).all())
    if known is not None and is_inside:
        inside = s.const(known.astype(wide), "by")
    else:
        by = s.cast(by, number)
        inside = s.cast(s.node("Clip", by, *(s.const(np.array(limit, number)) for limit in (0, bits - 1))), wide)
    if op["direction"] == "LEFT":
        shifted = s.node("BitShift", s.cast(data, wide), inside, direction="LEFT")
        kept = shifted if is_inside else s.node("Mul", shifted, s.cast(s.node("Equal", by, s.cast(inside, number)), wide))
        s.end_cast(kept, dtype)
        return
    if dtype.startswith("u"):
        s.end_cast(s.node("BitShift", s.cast(data, wide), inside, direction="RIGHT"), dtype)
        return
    signed = "int64" if dtype == "int64" else "int32"
    data = s.cast(data, signed)
    ones, zero = s.const(np.array(-1, signed)), s.const(np.array(0, signed))
    negative = s.node("Less", data, zero)
    size = s.cast(s.node("Where", negative, s.node("Sub", ones, data), data), wide)
    shifted = s.cast(s.node("BitShift", size, inside, direction="RIGHT"), signed)
    s.end_cast(s.node("Where", negative, s.node("Sub", ones, shifted), shifted), dtype)


def write_bitcast(op: Op, b: Builder) -> None:
    """Bitcast between integers of one size as a Cast, which keeps the bits; onnxruntime has no operator for others."""
    data, result = b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    if data.dtype != result.dtype and ("int" not in data.dtype or "int" not in result.dtype or op["ratio"] != 1):
        raise b.unsupported(op, f"the bits of {data.dtype} as {result.dtype}, for which onnxruntime has no operator,", rule="operand-types")
    if data.dtype == result.dtype:
        b.node("Identity", [b.stored(data.name)], op.outputs)
    else:
        s = Steps(op, b)
        s.end_cast(b.stored(data.name), result.dtype)


def read_bitwise(r: Reading) -> None:
    """BitwiseAnd, BitwiseOr and BitwiseXor."""
    r.emit(r.op_type)


def read_bit_shift(r: Reading) -> None:
    """BitShift."""
    r.emit("BitShift", direction=r.attribute("direction", ""))


WRITERS: dict[str, WriteFunction] = {
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), write_bitwise),
    "BitShift": write_bit_shift,
    "Bitcast": write_bitcast,
}

READERS: dict[str, ReadFunction] = {**dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), read_bitwise), "BitShift": read_bit_shift}
