"""Slicing, indexed reads and writes, and searches that give indices."""

from __future__ import annotations

import numpy as np

from qconvert.formats.tflite.reading import ReadFunction, Reading

__all__ = ["READERS"]

_FAR = int(np.iinfo(np.int64).max)
_FAR_BACK = int(np.iinfo(np.int64).min)


def _slice(op: Reading, bounds: list[tuple[int, int, int, int]], outputs: list[str] | None = None) -> list[str]:
    """Emits a Slice of (axis, start, end, step) rows."""
    columns = ([row[1] for row in bounds], [row[2] for row in bounds], [row[0] for row in bounds], [row[3] for row in bounds])
    names = [op.shape_const(column, hint) for column, hint in zip(columns, ("starts", "ends", "axes", "steps"), strict=True)]
    return op.emit("Slice", [op.input(0), *names], outputs)


def read_slice(op: Reading) -> None:
    """SLICE: (data, begin, size); a size of -1 means up to the end. Begins and sizes may be computed at run time."""
    if op.constant(1) is not None and op.constant(2) is not None:
        begins, sizes = op.ints(1), op.ints(2)
        if len(begins) != op.rank() or len(sizes) != op.rank() or min(begins, default=0) < 0:
            raise op.invalid(f"begin {begins} and size {sizes} for rank {op.rank()}")
        ends = [_FAR if size == -1 else begin + size for begin, size in zip(begins, sizes, strict=True)]
        _slice(op, [(axis, begins[axis], ends[axis], 1) for axis in range(op.rank())])
        return
    if op.constant(2) is not None and -1 in op.ints(2):
        raise op.unsupported("a size of -1 from a begin that is computed at run time")
    begin, size = op.int64(1), op.int64(2)
    ends_name = op.emit("Add", [begin, size], [op.intermediate("ends", "int64", (op.rank(),))])[0]
    axes = op.shape_const(range(op.rank()), "axes")
    op.emit("Slice", [op.input(0), begin, ends_name, axes])


def read_strided_slice(op: Reading) -> None:
    """STRIDED_SLICE with its five masks, by the rules of tf.strided_slice: a Slice, then removed and added axes."""
    begins, ends, steps = (op.ints(index) for index in (1, 2, 3))
    masks = {name: op.option(f"{name}Mask") for name in ("Begin", "End", "Ellipsis", "NewAxis", "ShrinkAxis")}
    if not len(begins) == len(ends) == len(steps) or 0 in steps:
        raise op.invalid(f"begin {begins}, end {ends} and strides {steps}")
    if bin(masks["Ellipsis"]).count("1") > 1:
        raise op.invalid("two ellipses")
    offset = bool(op.option("Offset", False))
    bounds: list[tuple[int, int, int, int]] = []
    shrunk: list[int] = []
    added: list[int] = []
    axis = position = 0
    consumed = sum(not (masks["NewAxis"] | masks["Ellipsis"]) >> i & 1 for i in range(len(begins)))
    for i in range(len(begins)):
        flag = 1 << i
        if masks["Ellipsis"] & flag:
            skipped = op.rank() - consumed
            axis, position = axis + skipped, position + skipped
        elif masks["NewAxis"] & flag:
            added.append(position)
            position += 1
        else:
            if axis >= op.rank():
                raise op.invalid("more indices than axes")
            end = begins[i] + ends[i] if offset else ends[i]
            if masks["ShrinkAxis"] & flag:
                bounds.append((axis, begins[i], _FAR if begins[i] == -1 else begins[i] + 1, 1))
                shrunk.append(axis)
            else:
                begin = begins[i] if not masks["Begin"] & flag else (0 if steps[i] > 0 else _FAR)
                end = end if not masks["End"] & flag else (_FAR if steps[i] > 0 else _FAR_BACK)
                bounds.append((axis, begin, end, steps[i]))
                position += 1
            axis += 1
    _sliced_and_reshaped(op, bounds, shrunk, added)


def _sliced_and_reshaped(op: Reading, bounds: list[tuple[int, int, int, int]], shrunk: list[int], added: list[int]) -> None:
    """The Slice of STRIDED_SLICE, then Squeeze and Unsqueeze where its masks ask for them."""
    data, result = op.tensor(), op.result()
    if not shrunk and not added:
        _slice(op, bounds)
        return
    kept = tuple(size for position, size in enumerate(result.shape or ()) if position not in added)
    full = list(kept)
    for axis in shrunk:
        full.insert(axis, 1)
    current = _slice(op, bounds, [op.like("sliced", data, tuple(full))])[0]
    if shrunk:
        outputs = [op.like("squeezed", data, kept)] if added else None
        current = op.emit("Squeeze", [current, op.shape_const(shrunk, "shrunk_axes")], outputs)[0]
    if added:
        op.emit("Unsqueeze", [current, op.shape_const(added, "new_axes")])


def read_gather(op: Reading) -> None:
    """GATHER along an axis, for equal leading batch dimensions if batch_dims is set."""
    axis = op.axis(op.option("Axis"), op.rank())
    batch = op.option("BatchDims")
    batch = batch + op.rank(1) if batch < 0 else batch
    op.emit("Gather", [op.input(0), op.int64(1)], axis=axis, batch_dims=batch)


def read_gather_nd(op: Reading) -> None:
    """GATHER_ND."""
    op.emit("GatherND", [op.input(0), op.int64(1)])


def read_scatter_nd(op: Reading) -> None:
    """SCATTER_ND: (indices, updates, shape) into zeros; values at the same index add up. The kernel knows stored integers alone,
    so adding quantized values has no meaning in real numbers; they can only be put at different places.
    """
    updates, result, indices = op.tensor(1), op.result(), op.constant(0)
    shape = op.int64(2)
    distinct = indices is not None and len(np.unique(indices.reshape(-1, indices.shape[-1]), axis=0)) == indices.size // indices.shape[-1]
    if updates.is_quantized and not distinct:
        raise op.unsupported("quantized updates at indices that are computed or repeated")
    scalar = op.const(np.zeros((), updates.dtype), "zero", updates.quantization)
    zeros = op.emit("Expand", [scalar, shape], [op.like("zeros", updates, result.shape)])[0]
    op.emit("ScatterND", [zeros, op.int64(0), op.input(1)], reduction="none" if distinct else "add")


def read_where(op: Reading) -> None:
    """WHERE with one input: the indices of what is not zero, a row each."""
    shape, result = op.tensor().shape, op.result()
    count = (result.shape or ("count",))[0]
    found = op.emit("NonZero", outputs=[op.intermediate("columns", "int64", (len(shape or ()), count))])[0]
    op.emit("Transpose", [found], perm=(1, 0))


def read_one_hot(op: Reading) -> None:
    """ONE_HOT: (indices, depth, on value, off value)."""
    on, off = op.constant(2), op.constant(3)
    if on is None or off is None:
        raise op.unsupported("on and off values that are computed at run time")
    values = op.const(np.array([off.reshape(-1)[0], on.reshape(-1)[0]], on.dtype), "off_on", op.tensor(2).quantization)
    op.emit("OneHot", [op.int64(0), op.int64(1), values], axis=op.option("Axis", -1))


def read_topk(op: Reading) -> None:
    """TOPK_V2: values and int32 indices of the k largest along the last axis."""
    k = op.ints(1)[0]
    indices = op.result(1)
    wide = op.intermediate("indices_int64", "int64", indices.shape)
    op.emit("TopK", [op.input(0), op.shape_const([k], "k")], [op.outputs[0], wide], axis=-1)
    op.emit("Cast", [wide], [op.outputs[1]], to=indices.dtype)


READERS: dict[str, ReadFunction] = {
    "SLICE": read_slice,
    "STRIDED_SLICE": read_strided_slice,
    "GATHER": read_gather,
    "GATHER_ND": read_gather_nd,
    "SCATTER_ND": read_scatter_nd,
    "WHERE": read_where,
    "ONE_HOT": read_one_hot,
    "TOPK_V2": read_topk,
}
