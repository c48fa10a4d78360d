"""Shapes and axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.formats.tflite.ops.one_to_one import make_indexed_writer
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op
from qconvert.operators.sizes import reshape_sizes


def read_reshape(r: Reading) -> None:
    """RESHAPE: the new shape is input 1, or an option in old files. A 0 is a size where the data have no elements (reshape_utils.h);
    elsewhere it copies a size, as XNNPACK has it, which also takes a constant list of rank 2."""
    result = r.result().static_shape
    extra: dict[str, Any] = {"allowzero": 1} if 0 in (r.tensor().static_shape or ()) else {}
    if r.has(1) and r.known_ints(1) is None:
        sizes = list(result) if result is not None else r.constant_sizes(r.input(0), r.input(1))
        r.emit("Reshape", [r.input(0), r.flat64(1) if sizes is None else r.list64(sizes, "shape")], **extra)
        return
    if r.has(1):
        r.emit("Reshape", [r.input(0), r.flat64(1)], **extra)
        return
    sizes = r.option("newShape", None)
    if sizes is None:
        raise r.invalid("has no new shape", rule="shape-missing")
    r.emit("Reshape", [r.input(0), r.list64([int(size) for size in sizes], "shape")], **extra)


def read_squeeze(r: Reading) -> None:
    """SQUEEZE: without named axes, all axes of size 1."""
    rank = r.rank()
    named = r.option("squeezeDims", None)
    if named is None or not named.size:
        axes = [axis for axis, size in enumerate(r.tensor().shape or ()) if size == 1]
    else:
        axes = sorted({r.axis(int(axis), rank) for axis in named})
    r.emit("Squeeze", [r.input(0), r.list64(axes, "axes")])


def read_expand_dims(r: Reading) -> None:
    """EXPAND_DIMS at the axis in input 1."""
    axis = r.axis(r.integer(1), r.rank() + 1)
    r.emit("Unsqueeze", [r.input(0), r.list64([axis], "axes")])


def read_transpose(r: Reading) -> None:
    """TRANSPOSE."""
    perm = tuple(r.axis(axis, r.rank()) for axis in r.ints(1))
    if sorted(perm) != list(range(r.rank())):
        raise r.invalid(f"{perm} is not a permutation of {r.rank()} axes", rule="not-a-permutation")
    r.emit("Transpose", [r.input(0)], perm=perm)


def read_tile(r: Reading) -> None:
    """TILE."""
    r.emit("Tile", [r.input(0), r.flat64(1)])


def read_broadcast_to(r: Reading) -> None:
    """BROADCAST_TO."""
    r.emit("Expand", [r.input(0), r.flat64(1)])


def read_fill(r: Reading) -> None:
    """FILL: (sizes, value)."""
    r.emit("Expand", [r.input(1), r.int64(0)])


def read_shape(r: Reading) -> None:
    """SHAPE; ONNX's is int64."""
    r.emit_int64("Shape", r.inputs)


READERS: Readers = {
    "RESHAPE": read_reshape,
    "SQUEEZE": read_squeeze,
    "EXPAND_DIMS": read_expand_dims,
    "TRANSPOSE": read_transpose,
    "TILE": read_tile,
    "BROADCAST_TO": read_broadcast_to,
    "FILL": read_fill,
    "SHAPE": read_shape,
}


def write_reshape(op: Op, w: Writing) -> None:
    """Reshape. TFLite has no sizes of 0 that copy and takes one -1, so the known result counts where the sizes have these."""
    sizes, shape = w.operand(op, 1).data, w.result(op).shape
    known = reshape_sizes(shape or ())
    data = w.tensors.get(op.inputs[0])
    if data is not None and data.dtype == "complex64" and known[-1:] == [2] and known.count(-1) <= 1:
        target = w.ints(known[:-1], f"{op.outputs[0]}/shape")
        w.emit("RESHAPE", [op.inputs[0], target], [w.complex(op, op.outputs[0])], newShape=known[:-1])
        return
    if sizes is not None and (sizes != 0).all():
        target = w.index(op, 1)
        known = [int(size) for size in sizes]
    elif shape is not None and known.count(-1) <= 1:
        target = w.ints(known, f"{op.outputs[0]}/shape")
    elif sizes is None:
        w.emit("RESHAPE", [op.inputs[0], w.index(op, 1)], op.outputs)
        return
    else:
        w.emit("RESHAPE", [op.inputs[0], _write_copied_sizes(op, w, [int(size) for size in sizes])], op.outputs)
        return
    w.emit("RESHAPE", [op.inputs[0], target], op.outputs, newShape=known)


def _write_copied_sizes(op: Op, w: Writing, sizes: list[int]) -> str:
    """The sizes as a tensor: 0 copies the size of the data along the same axis, which is dynamic."""
    hint, data = f"{op.outputs[0]}/shape", w.operand(op)
    rank, shape = data.rank, data.shape or ()
    if rank is None or op["allowzero"]:
        raise w.unsupported_error(op, f"sizes {sizes} of data of shape {data.shape}", rule="shape-mismatch")
    whole = w.emit_new("SHAPE", [data.name], f"{hint}/data", "int32", (rank,))
    parts = []
    for axis, size in enumerate(sizes):
        own = shape[axis] if size == 0 else size
        if isinstance(own, int):
            parts.append(w.ints([own], f"{hint}/size"))
            continue
        parts.append(w.add(f"{hint}/size", "int32", (1,)))
        w.emit("SLICE", [whole, w.ints([axis], f"{hint}/axis"), w.ints([1], f"{hint}/one")], [parts[-1]])
    return w.emit_new("CONCATENATION", parts, hint, "int32", (len(sizes),), axis=0)


def reshape_to_result(op: Op, w: Writing) -> None:
    """RESHAPE to the known shape of the result."""
    shape = w.result(op).shape or ()
    sizes = reshape_sizes(shape)
    if sizes.count(-1) > 1:
        raise w.unsupported_error(op, f"a result of shape {shape}", rule="unsupported-shape")
    w.emit("RESHAPE", [op.inputs[0], w.ints(sizes, f"{op.outputs[0]}/shape")], op.outputs, newShape=sizes)


def write_squeeze(op: Op, w: Writing) -> None:
    """SQUEEZE. Named axes are an option; none would mean all, so that is a RESHAPE."""
    axes = w.integers(op, 1)
    if axes:
        w.emit("SQUEEZE", op.inputs[:1], op.outputs, squeezeDims=[w.axis(op, axis) for axis in axes])
    else:
        reshape_to_result(op, w)


def write_unsqueeze(op: Op, w: Writing) -> None:
    """EXPAND_DIMS for one axis, else RESHAPE; several EXPAND_DIMS where more than one size is open."""
    result = w.result(op)
    axes = sorted(w.axis(op, axis, op.outputs[0]) for axis in w.integers(op, 1))
    if not axes or (len(axes) > 1 and sum(not isinstance(size, int) for size in result.shape or ()) <= 1):
        reshape_to_result(op, w)
        return
    name, shape = op.inputs[0], list(w.operand(op).shape or ())
    for axis in axes:
        shape.insert(axis, 1)
        grown = result.name if axis == axes[-1] else w.like(f"{result.name}/axis_{axis}", op.inputs[0], tuple(shape))
        w.emit("EXPAND_DIMS", [name, w.ints(axis, f"{result.name}/axis")], [grown])
        name = grown


def write_transpose(op: Op, w: Writing) -> None:
    """TRANSPOSE; without axes, which its kernel does not know, a RESHAPE."""
    if not op["perm"]:
        w.reshape(op.inputs[0], [], op.outputs[0])
    else:
        w.transpose(op.inputs[0], op["perm"], op.outputs[0])


def write_expand(op: Op, w: Writing) -> None:
    """Expand as FILL of a scalar, else as BROADCAST_TO. Sizes of 1 keep the data's own: those of the known result, or BROADCAST_ARGS."""
    data, sizes = w.operand(op), w.operand(op, 1).data
    shape = w.result(op).static_shape if sizes is not None else None
    target = w.index(op, 1, wide=True) if shape is None else w.ints(shape, f"{op.outputs[0]}/shape")
    if data.rank == 0:
        w.emit("FILL", [target, op.inputs[0]], op.outputs)
        return
    whole = op.source.startswith("BROADCAST_TO") or w.producer(op.inputs[1], "BroadcastArgs") is not None
    if shape is None and set(data.shape or ("unknown",)) != {1} and not whole:
        target = _broadcast_sizes(op, w, target)
    w.emit("BROADCAST_TO", [op.inputs[0], target], op.outputs)


def _broadcast_sizes(op: Op, w: Writing, sizes: str) -> str:
    """The sizes of data and `sizes` after broadcasting, which goes both ways in ONNX."""
    data, dtype = w.operand(op), w.tensor(sizes).dtype
    if data.static_shape is not None:
        own = w.const(np.array(data.static_shape, dtype), f"{op.outputs[0]}/own_sizes")
    else:
        own = w.emit_new("SHAPE", [op.inputs[0]], f"{op.outputs[0]}/own_sizes", dtype, None if data.rank is None else (data.rank,))
    rank = w.result(op).rank
    return w.emit_new("BROADCAST_ARGS", [own, sizes], f"{op.outputs[0]}/sizes", dtype, None if rank is None else (rank,))


def write_shape(op: Op, w: Writing) -> None:
    """SHAPE, of int32 if a Cast makes it that."""
    result = w.absorb_int32_cast(op)
    w.emit("SHAPE", op.inputs, [result])


WRITERS: Writers = {
    "Reshape": write_reshape,
    "Squeeze": write_squeeze,
    "Unsqueeze": write_unsqueeze,
    "Transpose": write_transpose,
    "Tile": make_indexed_writer("TILE", wide=True),
    "Expand": write_expand,
    "Shape": write_shape,
}
