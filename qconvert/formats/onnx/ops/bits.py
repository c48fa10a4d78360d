"""Functions of the bits of integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.elementwise import read_same_named, write_stored
from qconvert.formats.onnx.reading import ReadFunction, Reading
from qconvert.graph import Graph, Op, numpy_dtype

__all__ = ["OPSETS", "READERS", "WRITERS"]


def write_bit_shift(op: Op, b: Builder) -> None:
    """BitShift, which ONNX has of unsigned integers. To the left, signed ones have the same bits; to the right, -1 - x, which is not
    negative where x is, is shifted instead. TFLite's kernels shift to the right by fewer than all bits, and by as many to the left give 0.
    """
    name, dtype = op.outputs[0], b.tensor(op.outputs[0]).dtype
    data, by = (b.stored_value(item) for item in op.inputs)
    wide = {"uint16": "uint32", "int8": "uint8", "int16": "uint32", "int32": "uint32", "int64": "uint64"}.get(dtype, dtype)
    if wide == dtype and b.graph.is_from("onnx"):
        b.node("BitShift", [data, by], op.outputs, direction=op["direction"])
        return
    bits, known = numpy_dtype(dtype).itemsize * 8, b.graph.constant(op.inputs[1])
    number = "int64" if bits > 31 else "int32"
    is_inside = known is not None and bool((known.astype(np.int64) >= 0).all() and (known.astype(np.int64) < bits).all())
    if known is not None and is_inside:
        inside = b.const(known.astype(wide), f"{name}/by")
    else:
        by = b.cast(by, number)
        inside = b.cast(b.node("Clip", [by, *(b.const(np.array(limit, number), f"{name}/limit") for limit in (0, bits - 1))])[0], wide)
    if op["direction"] == "LEFT":
        shifted = b.node("BitShift", [b.cast(data, wide), inside], direction="LEFT")[0]
        if not is_inside:
            shifted = b.node("Mul", [shifted, b.cast(b.node("Equal", [by, b.cast(inside, number)])[0], wide)])[0]
        b.cast(shifted, dtype, name)
        return
    if dtype.startswith("u"):
        b.cast(b.node("BitShift", [b.cast(data, wide), inside], direction="RIGHT")[0], dtype, name)
        return
    signed = "int64" if dtype == "int64" else "int32"
    data = b.cast(data, signed)
    ones, zero = (b.const(np.array(value, signed), f"{name}/constant") for value in (-1, 0))
    negative = b.node("Less", [data, zero])[0]
    size = b.cast(b.node("Where", [negative, *b.node("Sub", [ones, data]), data])[0], wide)
    shifted = b.cast(b.node("BitShift", [size, inside], direction="RIGHT")[0], signed)
    b.cast(b.node("Where", [negative, *b.node("Sub", [ones, shifted]), shifted])[0], dtype, name)


def write_bitcast(op: Op, b: Builder) -> None:
    """Bitcast between integers of one size as a Cast, which keeps the bits; onnxruntime has no operator for others."""
    data, result = b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    if data.dtype != result.dtype and ("int" not in data.dtype or "int" not in result.dtype or op["ratio"] != 1):
        raise b.unsupported_error(
            op, f"the bits of {data.dtype} as {result.dtype}, for which onnxruntime has no operator,", rule="operand-types"
        )
    if data.dtype == result.dtype:
        b.node("Identity", [b.stored_value(data.name)], op.outputs)
    else:
        b.cast(b.stored_value(data.name), result.dtype, result.name)


def read_bit_shift(r: Reading) -> None:
    """BitShift."""
    r.emit("BitShift", direction=r.attribute("direction", ""))


_BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")

WRITERS: dict[str, WriteFunction] = {
    **dict.fromkeys(_BITWISE, write_stored),
    "BitShift": write_bit_shift,
    "Bitcast": write_bitcast,
}

READERS: dict[str, ReadFunction] = {**dict.fromkeys(_BITWISE, read_same_named), "BitShift": read_bit_shift}

OPSETS: dict[str, Callable[[Graph, Op], int]] = dict.fromkeys(_BITWISE, lambda graph, op: 18)
