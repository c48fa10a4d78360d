"""Data movement: shapes, axes and joining."""

from __future__ import annotations

from qconvert.formats.tflite.reading import ReadFunction, Reading

__all__ = ["READERS"]


def read_reshape(op: Reading) -> None:
    """RESHAPE: the new shape is input 1, or an option in old files."""
    if op.has(1):
        op.emit("Reshape", [op.input(0), op.int64(1)])
        return
    sizes = op.option("NewShapeAsNumpy", None)
    if sizes is None or isinstance(sizes, int):
        raise op.invalid("has no new shape")
    op.emit("Reshape", [op.input(0), op.shape_const([int(size) for size in sizes], "shape")])


def read_concatenation(op: Reading) -> None:
    """CONCATENATION."""
    op.emit("Concat", axis=op.axis(op.option("Axis"), op.rank()), activation=op.activation())


def read_transpose(op: Reading) -> None:
    """TRANSPOSE."""
    op.emit("Transpose", [op.input(0)], perm=tuple(op.axis(axis, op.rank()) for axis in op.ints(1)))


def read_pad(op: Reading) -> None:
    """PAD with real zero: rows of (before, after) for each axis."""
    rows = op.ints(1)
    op.emit("Pad", [op.input(0), op.shape_const(rows[::2] + rows[1::2], "pads")])


READERS: dict[str, ReadFunction] = {
    "RESHAPE": read_reshape,
    "CONCATENATION": read_concatenation,
    "TRANSPOSE": read_transpose,
    "PAD": read_pad,
}
