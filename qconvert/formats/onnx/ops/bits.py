"""Functions of the bits of integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.elementwise import read_same_named, write_stored
from qconvert.formats.onnx.reading import ReadFunction
from qconvert.formats.onnx.values import place_of
from qconvert.graph import Graph, Op, numpy_dtype


def write_bit_shift(op: Op, b: Builder) -> None:
    """BitShift, which ONNX has of unsigned integers. To the left, signed ones have the same bits; to the right, -1 - x, which is not
    negative where x is, is shifted instead. TFLite's kernels shift to the right by fewer than all bits, and by as many to the left give 0.
    """
    name, dtype = op.outputs[0], b.tensor(op.outputs[0]).dtype
    at = place_of(op, b)
    wide = {"uint16": "uint32", "int8": "uint8", "int16": "uint32", "int32": "uint32", "int64": "uint64"}.get(dtype, dtype)
    if wide == dtype and b.graph.is_from("onnx"):
        b.compute_stored(op)
        return
    bits, known = numpy_dtype(dtype).itemsize * 8, b.graph.constant(op.inputs[1])
    data, number = at.stored(op.inputs[0]), "int64" if bits > 31 else "int32"
    is_inside = known is not None and bool((known.astype(np.int64) >= 0).all() and (known.astype(np.int64) < bits).all())
    by = at.constant(known, wide) if is_inside else at.stored(op.inputs[1], number)
    inside = by if is_inside else by.clip(0, bits - 1).cast(wide)
    if op["direction"] == "LEFT":
        shifted = data.cast(wide).then("BitShift", inside, direction="LEFT")
        (shifted if is_inside else shifted * by.equals(inside.cast(number)).cast(wide)).finish(name)
        return
    if dtype.startswith("u"):
        data.cast(wide).then("BitShift", inside, direction="RIGHT").finish(name)
        return
    whole = data.cast("int64" if dtype == "int64" else "int32")
    negative = whole < 0
    size = negative.where(-1 - whole, whole).cast(wide)
    shifted = size.then("BitShift", inside, direction="RIGHT").cast(whole.dtype)
    negative.where(-1 - shifted, shifted).finish(name)


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


_BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")

WRITERS: dict[str, WriteFunction] = {
    **dict.fromkeys(_BITWISE, write_stored),
    "BitShift": write_bit_shift,
    "Bitcast": write_bitcast,
}

READERS: dict[str, ReadFunction] = dict.fromkeys((*_BITWISE, "BitShift"), read_same_named)

OPSETS: dict[str, Callable[[Graph, Op], int]] = dict.fromkeys(_BITWISE, lambda graph, op: 18)
