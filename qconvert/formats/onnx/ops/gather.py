"""Indexed reads and writes, and searches that give indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.ops.same_named import write_stored
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.values import axes, place_of
from qconvert.graph import Graph, Op
from qconvert.rewriting.lowering import conditions, since


def write_gather(op: Op, b: Builder) -> None:
    """Gather; with batch_dims, GatherND of rows of one index, for which the axis goes after the batches."""
    at, batch, axis = place_of(op, b), int(op["batch_dims"]), int(op["axis"])
    if batch == 0:
        b.compute_stored(op)
        return
    rank, index_rank = b.operand(op).rank, b.operand(op, 1).rank
    if rank is None or index_rank is None:
        raise b.unsupported_error(op, f"batch_dims {batch} and data of unknown rank", rule="unknown-rank")
    axis %= rank
    data, rows = at.stored(op.inputs[0]), at.value(b.int64(op.inputs[1]), "int64").then("Unsqueeze", axes(-1))
    between, own = list(range(batch, axis)), index_rank - batch
    if between:
        data = data.transpose(*range(batch), axis, *between, *range(axis + 1, rank))
    found = data.then("GatherND", rows, batch_dims=batch)
    first, last = batch + own, batch + own + len(between)
    if between:
        found = found.transpose(*range(batch), *range(first, last), *range(batch, first), *range(last, rank - 1 + own))
    found.finish(op.outputs[0])


def read_gather_nd(r: Reading) -> None:
    """GatherND; rows of one index after batches are a Gather with batch_dims."""
    batch, rows = r.attribute("batch_dims", 0), r.tensor(1).shape
    if batch and rows is not None and rows[-1] == 1 and len(rows) > batch:
        last = r.list64([len(rows) - 1], "rows_axis")
        narrow = r.emit_inner("Squeeze", [r.input(1), last], "indices")
        r.emit("Gather", [r.input(0), narrow], axis=batch, batch_dims=batch)
        return
    r.emit("GatherND", batch_dims=batch)


def write_reverse_sequence(op: Op, b: Builder) -> None:
    """ReverseSequence, which knows the axes 0 and 1 alone: others stand after a Transpose that brings them to the front, and one back."""
    rank = b.operand(op).rank
    time, batch = (int(op[name]) % rank if rank else int(op[name]) for name in ("time_axis", "batch_axis"))
    if {time, batch} == {0, 1}:
        b.compute_stored(op, time_axis=time, batch_axis=batch)
        return
    at = place_of(op, b)
    order = [batch, time, *(axis for axis in range(rank or 0) if axis not in (batch, time))]
    front = at.stored(op.inputs[0]).transpose(*order)
    turned = front.then("ReverseSequence", at.stored(op.inputs[1]), time_axis=1, batch_axis=0)
    turned.transpose(*map(order.index, range(len(order)))).finish(op.outputs[0])


def read_scatter_elements(r: Reading) -> None:
    """ScatterElements, and Scatter, its name before opset 11."""
    r.emit("ScatterElements", axis=r.attribute("axis", 0), reduction=r.attribute("reduction", "none"))


def _computes_with_values(op: Op, b: Builder) -> bool:
    """Whether updates are added to quantized values, or multiplied by them: their stored integers have zero points of their own."""
    return op["reduction"] in ("add", "mul") and b.result(op).is_quantized


def write_scatter_elements(op: Op, b: Builder) -> None:
    """ScatterElements; its reduction is new in opset 16."""
    reduction = None if op["reduction"] == "none" else op["reduction"]
    if reduction and b.opset < 16:
        raise b.unsupported_error(op, f"reduction {reduction} below opset 16", rule="opset-too-old")
    (b.compute if _computes_with_values(op, b) else b.compute_stored)(op, reduction=reduction)


def write_scatter_nd(op: Op, b: Builder) -> None:
    """ScatterND. With reduction "add", onnxruntime has floats and 32-bit integers, from opset 16; others go through int32."""
    result = b.result(op)
    if op["reduction"] == "none":
        b.compute_stored(op, reduction=None)
        return
    if b.opset < 16:
        raise b.unsupported_error(op, f"reduction {op['reduction']} below opset 16", rule="opset-too-old")
    if _computes_with_values(op, b):
        b.compute(op)
        return
    if result.dtype not in ("float32", "int32", "int64"):
        data, places, updates = (place_of(op, b).stored(name) for name in op.inputs)
        data.cast("int32").then("ScatterND", places, updates.cast("int32"), reduction=op["reduction"]).finish(result.name)
        return
    b.compute_stored(op)


def write_topk(op: Op, b: Builder) -> None:
    """TopK of stored values, or, for small integers, which onnxruntime's kernel lacks, of real ones, or of int32."""
    tensor = b.operand(op)
    attributes = b.own_attributes(op)
    k, name = b.stored_value(op.inputs[1]), op.outputs[0]
    if tensor.dtype not in ("int8", "uint8", "int16", "uint16"):
        b.node("TopK", [b.stored_value(tensor.name), k], op.outputs, **attributes)
    elif tensor.quantization is not None:
        values = b.node("TopK", [b.float_value(tensor.name), k], [b.name(f"{name}/real_result"), op.outputs[1]], **attributes)
        b.finish(op, values[0])
    else:
        wide = b.cast(b.stored_value(tensor.name), "int32")
        values = b.node("TopK", [wide, k], [b.name(f"{name}/int32"), op.outputs[1]], **attributes)
        b.cast(values[0], tensor.dtype, name)


#: Types of values for which onnxruntime's CPU provider has a OneHot of int64 indices (1.31, measured), and one that none of them holds.
_ONE_HOT = ("float32", "int64", "string", "float64")


def read_one_hot(r: Reading) -> None:
    """OneHot; of a depth in floats, and of the indices next to it, fractions are dropped."""
    indices, depth = r.input(0), r.fold_input(1)
    if "float" in r.tensor(1).dtype:
        indices = r.emit_inner("Cast", [indices], "indices", "int64", to="int64")
        depth = r.draft.fold_constant(r.emit_inner("Cast", [depth], "depth", "int64", to="int64"))
    r.emit("OneHot", [indices, depth, r.input(2)], axis=r.attribute("axis", -1), wraps=1)


def write_one_hot(op: Op, b: Builder) -> None:
    """OneHot; indices outside the range give the off value, in TFLite for negative ones too, which ONNX counts from the end."""
    name = op.outputs[0]
    if op["wraps"]:
        _end_one_hot(op, b, [b.stored_value(item) for item in op.inputs])
        return
    at = place_of(op, b)
    indices, depth, values = at.value(b.int64(op.inputs[0]), "int64"), at.stored(op.inputs[1]), at.stored(op.inputs[2])
    shifted = (indices < 0).where(2**62, indices)
    depth = depth if b.operand(op, 1).rank == 0 else depth.then("Reshape", axes())
    if b.operand(op).rank == 0:  # onnxruntime takes lists of indices alone
        row = at.node("OneHot", shifted.then("Reshape", axes(1)), depth, values, dtype=values.dtype, axis=-1)
        row.then("Reshape", axes(-1)).finish(name)
        return
    _end_one_hot(op, b, [shifted.name, depth.name, values.name])


def _end_one_hot(op: Op, b: Builder, operands: Sequence[str]) -> None:
    """The OneHot itself, of values in a type that onnxruntime has for it."""
    *others, values = operands
    name, result = op.outputs[0], b.result(op)
    if result.dtype in _ONE_HOT:
        b.node("OneHot", operands, op.outputs, axis=int(op["axis"]))
        return
    taken = "float32" if "float" in result.dtype else "int64"
    wide = b.cast(values, taken, hint=f"{name}/values_{taken}")
    found = b.node("OneHot", [*others, wide], hint=f"{name}/{taken}", axis=int(op["axis"]))
    b.cast(found[0], result.dtype, op.outputs[0])


def write_non_zero(op: Op, b: Builder) -> None:
    """NonZero."""
    tensor = b.operand(op)
    value = b.float_value(tensor.name)
    if tensor.quantization is None and tensor.dtype not in ("bool", "float32", "int32", "int64", "uint8"):
        value = b.cast(value, "float32" if "float" in tensor.dtype else "int32")
    b.node("NonZero", [value], op.outputs)


#: Types of which onnxruntime's CPU provider has a Unique (1.31, measured).
_UNIQUE = ("float32", "float64", "int64", "int8", "string")


def write_unique(op: Op, b: Builder) -> None:
    """Unique, in the order in which values come first."""
    tensor, index = b.operand(op), b.tensor(op.outputs[1])
    value = b.stored_value(tensor.name)
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


WRITERS: Writers = {
    "Unique": write_unique,
    "Gather": write_gather,
    "ReverseSequence": write_reverse_sequence,
    "ScatterND": write_scatter_nd,
    "TopK": write_topk,
    "OneHot": write_one_hot,
    "NonZero": write_non_zero,
    "ScatterElements": write_scatter_elements,
    "TensorScatter": conditions(since(24))(write_stored),
}

READERS: Readers = {
    "Unique": read_unique,
    "GatherND": read_gather_nd,
    "ScatterElements": read_scatter_elements,
    "Scatter": read_scatter_elements,
    "OneHot": read_one_hot,
}

#: Segments are lowered to ScatterND. Extremes are newer reductions than sums (ONNX operator changelog).
OPSETS: dict[str, Callable[[Graph, Op], int]] = {
    **dict.fromkeys(
        ("ScatterND", "ScatterElements", "UnsortedSegment"),
        lambda graph, op: {"none": 0, "max": 18, "min": 18}.get(str(op["reduction"]), 16),
    ),
    "SegmentSum": lambda graph, op: 16,
}
