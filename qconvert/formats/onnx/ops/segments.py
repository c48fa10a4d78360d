"""Rows put, or added up, at places that other inputs say; diagonals; gaps between elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.steps import Steps
from qconvert.graph import Op, Tensor, numpy_dtype
from qconvert.operators.segments import first_value
from qconvert.operators.sizes import UNKNOWN

__all__ = ["WRITERS"]


def write_segment_sum(op: Op, b: Builder) -> None:
    """A ScatterND that adds to zeros; the number of segments is that of the last row, and one."""
    s, data, ids = Steps(op, b), b.tensor(op.inputs[0]), b.int64(op.inputs[1])
    count = s.node("Add", s.node("Slice", ids, s.ints(-1), s.ints(2**62), s.ints(0)), s.ints(1))
    _scattered(s, data, ids, count, "add", 0)


def write_unsorted_segment(op: Op, b: Builder) -> None:
    """A ScatterND into first values. Rows of negative segments go to one more segment, which is cut off."""
    s, data, ids = Steps(op, b), b.tensor(op.inputs[0]), b.int64(op.inputs[1])
    reduction = {"sum": "add", "prod": "mul"}.get(str(op["reduction"]), str(op["reduction"]))
    count = s.node("Reshape", b.int64(op.inputs[2]), s.ints(1))
    known = b.graph.constant(op.inputs[1])
    if known is not None and (known >= 0).all():
        _scattered(s, data, ids, count, reduction, op["reduction"])
        return
    ids = s.node("Where", s.node("Less", ids, s.scalar(0)), count, ids)
    _scattered(s, data, ids, count, reduction, op["reduction"], spare=True)


def _scattered(s: Steps, data: Tensor, ids: str, count: str, reduction: str, name: object, spare: bool = False) -> None:
    """`data`, whose rows belong to `ids`, into `count` segments. onnxruntime reduces floats and 32-bit integers."""
    result, rank = s.b.tensor(s.name), (s.b.tensor(s.op.inputs[1]).rank or 0)
    dtype = data.dtype if data.dtype in ("float32", "int32", "int64", "float64") else "int32" if "int" in data.dtype else "float32"
    value = s.b.stored(data.name)
    shape = s.node("Slice", s.node("Shape", value), s.ints(rank), s.ints(2**62), s.ints(0))
    rows = s.node("Add", count, s.ints(1)) if spare else count
    first = first_value(str(name) if name else "sum", np.dtype(numpy_dtype(data.dtype))).astype(numpy_dtype(dtype))
    start = s.node("Expand", s.const(first), s.node("Concat", rows, shape, axis=0))
    value = value if dtype == data.dtype else s.cast(value, dtype)
    total = s.node("ScatterND", start, s.node("Unsqueeze", ids, s.ints(-1)), value, reduction=reduction)
    if spare:
        total = s.node("Slice", total, s.ints(0), count, s.ints(0))
    if dtype == result.dtype:
        s.b.rename(total, s.name)
    else:
        s.end_cast(total, result.dtype)


def write_dynamic_update_slice(op: Op, b: Builder) -> None:
    """A ScatterND of rows: of the axes up to the last along which the update is shorter than the data."""
    s = Steps(op, b)
    data, update = b.tensor(op.inputs[0]), b.tensor(op.inputs[1])
    if data.shape is None or update.shape is None:
        raise b.unsupported(op, "data or an update of unknown rank", rule="unknown-rank")
    sizes = list(zip(data.shape, update.shape, strict=True))
    axes = max((axis + 1 for axis, (x, y) in enumerate(sizes) if x != y or x == UNKNOWN), default=0)
    if axes == 0:
        b.node("Identity", [b.stored(update.name)], op.outputs)
        return
    is_open = any(isinstance(size, str) for pair in sizes[:axes] for size in pair)
    last, grid = (_open_places if is_open else _known_places)(s, axes)
    starts = s.slice(b.int64(op.inputs[2]), 0, axes, 0)
    starts = s.node("Max", s.node("Min", starts, last), s.const(np.zeros(axes, np.int64)))
    s.end("ScatterND", b.stored(data.name), s.node("Add", starts, grid), b.stored(update.name))


def _known_places(s: Steps, axes: int) -> tuple[str, str]:
    """The last starts that leave an update within the data, and the places of its rows, of numbers."""
    shape, update = (s.b.tensor(name).static_shape or () for name in s.op.inputs[:2])
    s.require_small(update[:axes])
    last = np.array([x - y for x, y in zip(shape, update, strict=True)], np.int64)[:axes]
    return s.const(last, "last_starts"), s.const(np.moveaxis(np.indices(update[:axes]), 0, -1).astype(np.int64), "grid")


def _open_places(s: Steps, axes: int) -> tuple[str, str]:
    """The same, worked out when the model runs: the places are those of a tensor without zeros."""
    sizes = [s.node("Slice", s.node("Shape", s.b.stored(name)), s.ints(0), s.ints(axes), s.ints(0)) for name in s.op.inputs[:2]]
    ones = s.node("Expand", s.const(np.ones((), bool), "one"), sizes[1])
    places = s.node("Transpose", s.node("NonZero", ones), perm=[1, 0])
    rows = s.node("Concat", sizes[1], s.ints(axes), axis=0)
    return s.node("Sub", *sizes), s.node("Reshape", places, rows, allowzero=1 if s.b.opset >= 14 else None)


def write_sparse_to_dense(op: Op, b: Builder) -> None:
    """A ScatterND into the default value."""
    s, values = Steps(op, b), b.tensor(op.inputs[2])
    rank = b.tensor(op.inputs[0]).rank
    if rank is None or values.rank is None:
        raise b.unsupported(op, "indices or values of unknown rank", rule="unknown-rank")
    indices, value = b.int64(op.inputs[0]), b.stored(values.name)
    if rank < 2:
        indices = s.node("Reshape", indices, s.ints(-1, 1))
    count = s.slice(s.node("Shape", indices), 0, 1, 0)
    if values.rank == 0:
        value = s.node("Expand", value, count)
    default = s.node("Reshape", b.stored(op.inputs[3]), s.const(np.array([], np.int64)))
    s.end("ScatterND", s.node("Expand", default, b.int64(op.inputs[1])), indices, value)


def write_matrix_diag(op: Op, b: Builder) -> None:
    """The data where a constant of the diagonal is true, else zero."""
    s, tensor = Steps(op, b), b.tensor(op.inputs[0])
    if not tensor.shape:
        raise b.unsupported(op, f"data of shape {tensor.shape}", rule="unsupported-shape")
    rows = s.node("Unsqueeze", b.stored(tensor.name), s.ints(-1))
    zero = s.const(np.zeros((), numpy_dtype(tensor.dtype)), "zero")
    s.choose(_diagonal(s, tensor, -1, -1), rows, zero, tensor.dtype)


def write_matrix_set_diag(op: Op, b: Builder) -> None:
    """The diagonal, filled up to whole columns, where a constant is true, else the data."""
    s, tensor = Steps(op, b), b.tensor(op.inputs[0])
    if tensor.shape is None or len(tensor.shape) < 2:
        raise b.unsupported(op, f"data of shape {tensor.shape}", rule="unsupported-shape")
    rows, columns = tensor.shape[-2:]
    if isinstance(rows, int) and isinstance(columns, int):
        places = s.const(np.minimum(np.arange(columns), min(rows, columns) - 1), "columns")
    else:
        count = s.node("Gather", s.node("Shape", b.stored(op.inputs[1])), s.scalar(-1))
        last = s.node("Sub", count, s.scalar(1))
        places = s.node("Min", _counted(s, tensor, -1), last)
    wide = s.node("Gather", b.stored(op.inputs[1]), places, axis=len(tensor.shape) - 2)
    s.choose(_diagonal(s, tensor, -2, -1), s.node("Unsqueeze", wide, s.ints(-2)), b.stored(tensor.name), tensor.dtype)


def _diagonal(s: Steps, tensor: Tensor, row: int, column: int) -> str:
    """Whether an element of rows and columns as many as two axes of a tensor have is on the diagonal: a constant where they are numbers."""
    sizes = [(tensor.shape or ())[axis] for axis in (row, column)]
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) == 2:
        s.require_small(numbers)
        return s.const(np.eye(*numbers, dtype=bool), "diagonal")
    return s.node("Equal", s.node("Unsqueeze", _counted(s, tensor, row), s.ints(1)), _counted(s, tensor, column))


def _counted(s: Steps, tensor: Tensor, axis: int) -> str:
    """The numbers of the places along an axis of a tensor."""
    sizes = s.node("Shape", s.b.stored(tensor.name))
    size = s.node("Gather", sizes, s.scalar(axis + (tensor.rank or 0)), axis=0)
    return s.node("Range", s.scalar(0), size, s.scalar(1))


#: Types of which onnxruntime's CPU provider has a Pad (1.31, measured).
_PADDED = ("float32", "float64", "int32", "int64", "uint32", "uint64", "int8", "uint8", "bool")


def dilated(s: Steps, value: str, sizes: list[int], gaps: Sequence[int], filler: str) -> tuple[str, list[int]]:
    """The value with `filler` between neighbours along each axis, as many as `gaps` says, and its sizes."""
    for axis, gap in enumerate(gaps):
        if gap and sizes[axis]:
            parts = [*sizes[: axis + 1], 1, *sizes[axis + 1 :]]
            value = s.node("Reshape", value, s.ints(*parts))
            value = s.node("Pad", value, s.ints(*[0] * len(parts), *(gap if i == axis + 1 else 0 for i in range(len(parts)))), filler)
            sizes[axis] *= gap + 1
            value = s.slice(s.node("Reshape", value, s.ints(*sizes)), 0, sizes[axis] - gap, axis)
            sizes[axis] -= gap
    return value, sizes


def write_interior_pad(op: Op, b: Builder) -> None:
    """For each axis with gaps: an axis of one after it, which a Pad fills, and both as one. Edges are a Pad, which may cut, too."""
    s, tensor = Steps(op, b), b.tensor(op.inputs[0])
    shape, dtype = tensor.static_shape, tensor.dtype
    if shape is None:
        raise b.unsupported(op, f"data of shape {tensor.shape}", rule="unsupported-shape")
    value, filler = b.stored(tensor.name), b.stored(op.inputs[1])
    if (b.tensor(op.inputs[1]).rank or 0) != 0:
        filler = s.node("Reshape", filler, s.const(np.array([], np.int64)))
    if dtype not in _PADDED:
        wide = "float32" if "float" in dtype else "int32"
        value, filler = s.cast(value, wide), s.cast(filler, wide)
    value, _ = dilated(s, value, list(shape), op["interior"], filler)
    value = s.node("Pad", value, s.ints(*(max(n, 0) for n in (*op["low"], *op["high"]))), filler)
    cuts = [(axis, max(-low, 0), min(high, 0)) for axis, (low, high) in enumerate(zip(op["low"], op["high"], strict=True))]
    for axis, start, end in cuts:
        if start or end:
            value = s.slice(value, start, end or 2**62, axis)
    if dtype in _PADDED:
        b.rename(value, s.name)
    else:
        s.end_cast(value, dtype)


WRITERS: dict[str, WriteFunction] = {
    "SegmentSum": write_segment_sum,
    "UnsortedSegment": write_unsorted_segment,
    "DynamicUpdateSlice": write_dynamic_update_slice,
    "SparseToDense": write_sparse_to_dense,
    "MatrixDiag": write_matrix_diag,
    "MatrixSetDiag": write_matrix_set_diag,
    "InteriorPad": write_interior_pad,
}
