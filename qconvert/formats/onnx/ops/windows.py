"""Windows of any number of axes, different values, and suppression of boxes that overlap."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.node import NotCoveredError
from qconvert.formats.onnx.reading import ReadFunction, Reading
from qconvert.formats.onnx.steps import Steps
from qconvert.graph import Op

__all__ = ["READERS", "WRITERS"]

_NODES = {"add": "Add", "mul": "Mul", "min": "Min", "max": "Max", "all": "And", "any": "Or"}

#: Elements of a window, each of which is a Slice.
_MOST = 1024


def write_reduce_window(op: Op, b: Builder) -> None:
    """A Slice for each place in the window, combined one after the other, as TFLite's kernel does. Narrow integers wrap around."""
    s, tensor, result = Steps(op, b), b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    shape, sizes = tensor.static_shape, result.static_shape
    if shape is None or sizes is None or math.prod(op["window"]) > _MOST:
        raise b.unsupported(op, f"a window of {tuple(op['window'])} over data of shape {tensor.shape}", rule="unsupported-shape")
    own = ("float32", "float64", "int32", "int64", "bool")
    dtype = tensor.dtype if tensor.dtype in own else "float32" if "float" in tensor.dtype else "int64"
    value, first = b.stored(tensor.name), b.stored(op.inputs[1])
    if (b.tensor(op.inputs[1]).rank or 0) != 0:
        first = s.node("Reshape", first, s.const(np.array([], np.int64)))
    if dtype != tensor.dtype:
        value, first = s.cast(value, dtype), s.cast(first, dtype)
    node, axes = _NODES[str(op["function"])], s.ints(*range(len(shape)))
    total = s.node("Expand", first, s.ints(*sizes))
    strides = s.ints(*op["strides"])
    for at in product(*map(range, op["window"])):
        starts = [i * d for i, d in zip(at, op["dilations"], strict=True)]
        ends = [start + (n - 1) * stride + 1 if n else start for start, n, stride in zip(starts, sizes, op["strides"], strict=True)]
        total = s.node(node, total, s.node("Slice", value, s.ints(*starts), s.ints(*ends), axes, strides))
    if dtype == tensor.dtype:
        b.rename(total, s.name)
    else:
        s.end_cast(total, tensor.dtype)


def write_start_gather(op: Op, b: Builder) -> None:
    """A GatherND at every place of every window, and a Transpose that puts the windows' axes where they belong."""
    s, data, starts = Steps(op, b), b.tensor(op.inputs[0]), b.tensor(op.inputs[1])
    shape, rank = data.static_shape, starts.rank
    if shape is None or rank is None:
        raise b.unsupported(op, f"data of shape {data.shape} and starts of shape {starts.shape}", rule="unsupported-shape")
    sizes, axis, places = op["slice_sizes"], int(op["index_vector_dim"]), op["start_index_map"]
    index = b.int64(starts.name)
    if axis == rank:
        index, rank = s.node("Unsqueeze", index, s.ints(-1)), rank + 1
    elif axis != rank - 1:
        index = s.node("Transpose", index, perm=[*(i for i in range(rank) if i != axis), axis])
    last = np.array([a - n for a, n in zip(shape, sizes, strict=True)], np.int64)
    order = [list(places).index(i) if i in places else -1 for i in range(len(shape))]
    columns = [s.node("Gather", index, s.ints(position), axis=-1) if position >= 0 else "" for position in order]
    zero = next((s.node("Sub", name, name) for name in columns if name), "")
    if not zero:
        raise b.unsupported(op, "no starts", rule="input-missing")
    full = s.node("Concat", *(name or zero for name in columns), axis=-1)
    full = s.node("Max", s.node("Min", full, s.const(last, "last_starts")), s.const(np.zeros(len(shape), np.int64)))
    kept = [i for i in range(len(shape)) if i not in op["collapsed_dims"]]
    s.require_small([sizes[i] for i in kept])
    grid = np.moveaxis(np.indices([sizes[i] if i in kept else 1 for i in range(len(shape))]), 0, -1)
    grid = grid.reshape(*(sizes[i] for i in kept), len(shape)).astype(np.int64)
    wide = s.node("Unsqueeze", full, s.ints(*range(rank - 1, rank - 1 + len(kept)))) if kept else full
    found_rank = rank - 1 + len(kept)
    batch = [i for i in range(found_rank) if i not in op["offset_dims"]]
    perm = [0] * found_rank
    for source, target in enumerate([*batch, *op["offset_dims"]]):
        perm[target] = source
    places_of_all = s.node("Add", wide, s.const(grid, "grid"))
    if perm == list(range(found_rank)):
        s.end("GatherND", b.stored(data.name), places_of_all)
    else:
        s.end("Transpose", s.node("GatherND", b.stored(data.name), places_of_all), perm=perm)


#: Types of which onnxruntime's CPU provider has a Unique (1.31, measured).
_UNIQUE = ("float32", "float64", "int64", "int8", "string")


def write_unique(op: Op, b: Builder) -> None:
    """Unique, in the order in which values come first."""
    s, tensor, index = Steps(op, b), b.tensor(op.inputs[0]), b.tensor(op.outputs[1])
    value = b.stored(tensor.name)
    wide = tensor.dtype if tensor.dtype in _UNIQUE else "float32" if "float" in tensor.dtype else "int64"
    value = value if wide == tensor.dtype else s.cast(value, wide)
    names = [b.name(f"{s.name}/{part}") for part in ("values", "inverse")]
    b.node("Unique", [value], [names[0], "", names[1]], sorted=0)
    s.end_cast(names[1], index.dtype, output=1)
    s.end_cast(names[0], tensor.dtype)


def read_unique(r: Reading) -> None:
    """Unique of a list, unsorted, of which the values and the inverse indices are read."""
    if r.attribute("sorted", 1):
        raise NotCoveredError("values in ascending order")
    if r.is_used(1) or r.is_used(3) or r.tensor(0).rank != 1 or r.attribute("axis", 0) != 0:
        raise NotCoveredError("indices or counts, or data that are no list")
    outputs = [r.outputs[0], r.outputs[2] if len(r.outputs) > 2 and r.outputs[2] else r.intermediate("inverse", "int64")]
    r.emit("Unique", outputs=outputs, dtype=[r.tensor(0).dtype, "int64"])


def write_select_boxes(op: Op, b: Builder) -> None:
    """NonMaxSuppression. TFLite suppresses at the threshold, ONNX above it, which therefore is one float lower."""
    s = Steps(op, b)
    most = b.ints(op, 2)[0]
    sigma = b.graph.constant(op.inputs[5]) if len(op.inputs) > 5 else np.zeros(())
    if sigma is None or sigma.any():
        raise b.unsupported(op, "soft suppression, which no operator of ONNX has", rule="form-not-covered")
    boxes, scores = s.node("Unsqueeze", b.stored(op.inputs[0]), s.ints(0)), s.node("Unsqueeze", b.stored(op.inputs[1]), s.ints(0, 1))
    least = b.graph.constant(op.inputs[4])
    score = s.node("Reshape", b.stored(op.inputs[4]), s.ints(1)) if least is None else s.number_1d(float(least.reshape(())))
    rows = s.node("NonMaxSuppression", boxes, scores, s.ints(most), _one_float_lower(s, op.inputs[3]), score)
    chosen = s.column(rows, 2, 1)
    count = s.node("Shape", chosen)
    pads = s.node("Concat", s.ints(0), s.node("Sub", s.ints(most), count), axis=0)
    s.end_cast(s.node("Pad", chosen, pads), b.tensor(op.outputs[0]).dtype)
    s.end_cast(s.node("Reshape", count, s.const(np.array([], np.int64))), b.tensor(op.outputs[1]).dtype, output=1)
    if len(op.outputs) > 2:
        s.end("Pad", s.node("Gather", b.stored(op.inputs[1]), chosen), pads, output=2)


def _one_float_lower(s: Steps, name: str) -> str:
    """The greatest float32 below a threshold, between the bounds 0 and 1 that ONNX demands.

    Of one that is computed at run time it is a product: 2**-24 of a float is more than half of the step to its lower neighbour, and the
    whole step where that is of another power of two.
    """
    known = s.b.graph.constant(name)
    if known is not None:
        return s.number_1d(min(max(float(np.nextafter(np.float32(known.reshape(())), np.float32(-1))), 0.0), 1.0))
    below = s.node("Mul", s.node("Reshape", s.b.stored(name), s.ints(1)), s.number(float(np.nextafter(np.float32(1), np.float32(0)))))
    return s.node("Clip", below, s.number(0.0), s.number(1.0))


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
    "ReduceWindow": write_reduce_window,
    "StartGather": write_start_gather,
    "Unique": write_unique,
    "SelectBoxes": write_select_boxes,
}

READERS: dict[str, ReadFunction] = {"Unique": read_unique, "NonMaxSuppression": read_suppression}
