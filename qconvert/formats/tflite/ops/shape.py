"""Data movement: shapes, axes, joining and splitting, padding."""

from __future__ import annotations

import numpy as np

from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op

__all__ = ["READERS", "WRITERS"]


def read_reshape(op: Reading) -> None:
    """RESHAPE: the new shape is input 1, or an option in old files."""
    result = op.result().static_shape
    if op.has(1) and op.constant(1) is None and result is not None:
        op.emit("Reshape", [op.input(0), op.shape_const(result, "shape")])
        return
    if op.has(1):
        op.emit("Reshape", [op.input(0), op.int64(1)])
        return
    sizes = op.option("NewShapeAsNumpy", None)
    if sizes is None or isinstance(sizes, int):
        raise op.invalid("has no new shape")
    op.emit("Reshape", [op.input(0), op.shape_const([int(size) for size in sizes], "shape")])


def write_reshape(op: Op, w: Writing) -> None:
    """Reshape; TFLite has no sizes of 0 that copy, so the known result counts."""
    shape = w.tensor(op.outputs[0]).shape or ()
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    if sizes.count(-1) > 1:
        raise w.unsupported(op, f"a result of shape {shape}")
    target = w.ints(sizes, f"{op.outputs[0]}/shape")
    w.emit("RESHAPE", [op.inputs[0], target], op.outputs, "ReshapeOptions", newShape=sizes)


def read_squeeze(op: Reading) -> None:
    """SQUEEZE: without named axes, all axes of size 1."""
    rank = op.rank()
    named = op.option("SqueezeDimsAsNumpy", 0)
    if isinstance(named, int) or not named.size:
        axes = [axis for axis, size in enumerate(op.tensor().shape or ()) if size == 1]
    else:
        axes = sorted({op.axis(int(axis), rank) for axis in named})
    op.emit("Squeeze", [op.input(0), op.shape_const(axes, "axes")])


def read_expand_dims(op: Reading) -> None:
    """EXPAND_DIMS at the axis in input 1."""
    axis = op.axis(op.ints(1)[0], op.rank() + 1)
    op.emit("Unsqueeze", [op.input(0), op.shape_const([axis], "axes")])


def read_transpose(op: Reading) -> None:
    """TRANSPOSE."""
    perm = tuple(op.axis(axis, op.rank()) for axis in op.ints(1))
    if sorted(perm) != list(range(op.rank())):
        raise op.invalid(f"{perm} is no permutation of {op.rank()} axes")
    op.emit("Transpose", [op.input(0)], perm=perm)


def read_concatenation(op: Reading) -> None:
    """CONCATENATION."""
    op.emit("Concat", axis=op.axis(op.option("Axis"), op.rank()), activation=op.activation())


def read_pack(op: Reading) -> None:
    """PACK: stacks tensors along a new axis."""
    op.emit("Pack", axis=op.axis(op.option("Axis"), op.rank() + 1))


def read_unpack(op: Reading) -> None:
    """UNPACK: takes an axis apart."""
    op.emit("Unpack", axis=op.axis(op.option("Axis"), op.rank()))


def read_split(op: Reading) -> None:
    """SPLIT: (axis, data) into equal parts."""
    axis = op.axis(op.ints(0)[0], op.rank(1))
    size = (op.tensor(1).shape or ())[axis]
    if not isinstance(size, int) or size % len(op.outputs):
        raise op.unsupported(f"axis {axis} of size {size} in {len(op.outputs)} parts")
    sizes = op.shape_const([size // len(op.outputs)] * len(op.outputs), "sizes")
    op.emit("Split", [op.input(1), sizes], axis=axis)


def read_split_v(op: Reading) -> None:
    """SPLIT_V: (data, sizes, axis); one size may be -1."""
    axis, sizes = op.axis(op.ints(2)[0], op.rank()), op.ints(1)
    if sizes.count(-1) == 1:
        whole = (op.tensor().shape or ())[axis]
        if not isinstance(whole, int):
            raise op.unsupported("a size of -1 along an axis known only at run time")
        sizes[sizes.index(-1)] = whole - sum(size for size in sizes if size != -1)
    if len(sizes) != len(op.outputs) or min(sizes) < 0:
        raise op.invalid(f"sizes {sizes} for {len(op.outputs)} outputs")
    op.emit("Split", [op.input(0), op.shape_const(sizes, "sizes")], axis=axis)


def _pads(op: Reading) -> str:
    """Rows of (before, after) for each axis, as ONNX's (all before, all after)."""
    rows = op.ints(1)
    if len(rows) != 2 * op.rank() or min(rows, default=0) < 0:
        raise op.invalid(f"padding {rows} for rank {op.rank()}")
    return op.shape_const(rows[::2] + rows[1::2], "pads")


def read_pad(op: Reading) -> None:
    """PAD with real zero."""
    op.emit("Pad", [op.input(0), _pads(op)])


def read_padv2(op: Reading) -> None:
    """PADV2 with the value in input 2, which has the data's quantization."""
    op.emit("Pad", [op.input(0), _pads(op), op.input(2)])


def read_mirror_pad(op: Reading) -> None:
    """MIRROR_PAD: REFLECT (0) without the edge, SYMMETRIC (1) with it."""
    op.emit("Pad", [op.input(0), _pads(op)], mode="symmetric" if op.option("Mode") == 1 else "reflect")


def read_tile(op: Reading) -> None:
    """TILE."""
    op.emit("Tile", [op.input(0), op.int64(1)])


def read_broadcast_to(op: Reading) -> None:
    """BROADCAST_TO."""
    op.emit("Expand", [op.input(0), op.int64(1)])


def read_fill(op: Reading) -> None:
    """FILL: (sizes, value)."""
    op.emit("Expand", [op.input(1), op.int64(0)])


def read_shape(op: Reading) -> None:
    """SHAPE; ONNX's is int64."""
    result = op.result()
    if result.dtype == "int64":
        op.emit("Shape")
        return
    wide = op.intermediate("int64", "int64", result.shape)
    op.emit("Shape", outputs=[wide])
    op.emit("Cast", [wide], to=result.dtype)


def read_range(op: Reading) -> None:
    """RANGE: (start, limit, delta)."""
    op.emit("Range")


def read_reverse(op: Reading) -> None:
    """REVERSE_V2: a Slice with steps of -1."""
    axes = [op.axis(axis, op.rank()) for axis in op.ints(1)]
    count = len(axes)
    values = ([-1] * count, [int(np.iinfo(np.int64).min)] * count, axes, [-1] * count)
    names = [op.shape_const(value, hint) for value, hint in zip(values, ("starts", "ends", "axes", "steps"), strict=True)]
    op.emit("Slice", [op.input(0), *names])


READERS: dict[str, ReadFunction] = {
    "RESHAPE": read_reshape,
    "SQUEEZE": read_squeeze,
    "EXPAND_DIMS": read_expand_dims,
    "TRANSPOSE": read_transpose,
    "CONCATENATION": read_concatenation,
    "PACK": read_pack,
    "UNPACK": read_unpack,
    "SPLIT": read_split,
    "SPLIT_V": read_split_v,
    "PAD": read_pad,
    "PADV2": read_padv2,
    "MIRROR_PAD": read_mirror_pad,
    "TILE": read_tile,
    "BROADCAST_TO": read_broadcast_to,
    "FILL": read_fill,
    "SHAPE": read_shape,
    "RANGE": read_range,
    "REVERSE_V2": read_reverse,
}

WRITERS: dict[str, WriteFunction] = {"Reshape": write_reshape}
