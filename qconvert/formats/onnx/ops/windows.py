"""Different values, and suppression of boxes that overlap."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.node import NotCoveredError
from qconvert.formats.onnx.reading import ReadFunction, Reading
from qconvert.graph import Op

__all__ = ["READERS", "WRITERS"]

#: Types of which onnxruntime's CPU provider has a Unique (1.31, measured).
_UNIQUE = ("float32", "float64", "int64", "int8", "string")


def write_unique(op: Op, b: Builder) -> None:
    """Unique, in the order in which values come first."""
    tensor, index = b.tensor(op.inputs[0]), b.tensor(op.outputs[1])
    value = b.stored(tensor.name)
    wide = tensor.dtype if tensor.dtype in _UNIQUE else "float32" if "float" in tensor.dtype else "int64"
    value = value if wide == tensor.dtype else b.cast(value, wide)
    names = [b.name(f"{op.outputs[0]}/{part}") for part in ("values", "inverse")]
    b.node("Unique", [value], [names[0], "", names[1]], sorted=0)
    b.cast(names[1], index.dtype, index.name)
    b.cast(names[0], tensor.dtype, op.outputs[0])


def read_unique(r: Reading) -> None:
    """Unique of a list, unsorted, of which the values and the inverse indices are read."""
    if r.attribute("sorted", 1):
        raise NotCoveredError("values in ascending order")
    if r.is_used(1) or r.is_used(3) or r.tensor(0).rank != 1 or r.attribute("axis", 0) != 0:
        raise NotCoveredError("indices or counts, or data that are not a vector")
    outputs = [r.outputs[0], r.outputs[2] if len(r.outputs) > 2 and r.outputs[2] else r.intermediate("inverse", "int64")]
    r.emit("Unique", outputs=outputs, dtype=[r.tensor(0).dtype, "int64"])


def read_suppression(r: Reading) -> None:
    """NonMaxSuppression."""
    operands = [r.input(0), r.input(1), *(r.folded(index) if r.has(index) else "" for index in range(2, len(r.inputs)))]
    r.emit("NonMaxSuppression", operands, dtype="int64", center_point_box=int(r.attribute("center_point_box", 0)))


def write_suppression(op: Op, b: Builder) -> None:
    """NonMaxSuppression, whose number and thresholds are lists of one."""
    one = b.const(np.array([1], np.int64), f"{op.outputs[0]}/one")
    operands = [b.stored(name) for name in op.inputs]
    for position, name in enumerate(op.inputs[2:], 2):
        if name and b.tensor(name).rank == 0:
            operands[position] = b.node("Reshape", [operands[position], one])[0]
    b.node("NonMaxSuppression", operands, op.outputs, center_point_box=int(op["center_point_box"]) or None)


WRITERS: dict[str, WriteFunction] = {
    "NonMaxSuppression": write_suppression,
    "Unique": write_unique,
}

READERS: dict[str, ReadFunction] = {"Unique": read_unique, "NonMaxSuppression": read_suppression}
