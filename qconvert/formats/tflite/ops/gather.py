"""Indexed reads and writes, and searches that give indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op, integer_range, numpy_dtype
from qconvert.graph.metadata import SOURCE
from qconvert.operators import kind_of


def read_gather(r: Reading) -> None:
    """GATHER along an axis, for equal leading batch dimensions if batch_dims is set."""
    axis = r.axis(r.option("axis"), r.rank())
    batch = r.option("batchDims")
    batch = batch + r.rank(1) if batch < 0 else batch
    r.emit("Gather", [r.input(0), r.int64(1)], axis=axis, batch_dims=batch)


def read_reverse_sequence(r: Reading) -> None:
    """REVERSE_SEQUENCE along seq_dim, by a length for each index of batch_dim."""
    time, batch = (r.axis(r.option(option), r.rank()) for option in ("seqDim", "batchDim"))
    r.emit("ReverseSequence", [r.input(0), r.int64(1)], time_axis=time, batch_axis=batch)


def read_where(r: Reading) -> None:
    """WHERE with one input: the indices of what is stored as another number than 0, a row each."""
    rank, result = r.rank(), r.result()
    stored = r.reinterpret(r.input(0), None)
    stated = (result.shape or (0,))[0]
    count = stated if isinstance(stated, str) else f"{result.name}_count"  # which depends on the data, also where the file states one
    r.with_shape((count, rank))
    found = r.emit_new("NonZero", [stored], "columns", "int64", (rank, count))
    r.emit("Transpose", [found], perm=(1, 0))


def read_one_hot(r: Reading) -> None:
    """ONE_HOT: (indices, depth, on value, off value)."""
    on, off = r.constant(2), r.constant(3)
    if on is None or off is None:
        lists = [r.emit("Reshape", [r.input(i), r.list64([1], "list")], [r.like("list", r.tensor(i), (1,))])[0] for i in (3, 2)]
        both = r.emit_stored("Concat", lists, [r.like("off_on", r.tensor(2), (2,))], axis=0)
        r.emit("OneHot", [r.int64(0), r.int64(1), *both], axis=r.option("axis", -1))
        return
    if on.size != 1 or off.size != 1:
        raise r.invalid(f"{on.size} on values and {off.size} off values, not one each", rule="not-a-scalar")
    values = r.const(np.array([off.reshape(-1)[0], on.reshape(-1)[0]], on.dtype), "off_on", r.tensor(2).quantization)
    r.emit("OneHot", [r.int64(0), r.int64(1), values], axis=r.option("axis", -1))


def read_topk(r: Reading) -> None:
    """TOPK_V2: values and int32 indices of the k largest along the last axis."""
    k = r.flat64(1) if r.known_ints(1) is None else r.list64([r.integer(1)], "k")
    r.emit_int64("TopK", [r.input(0), k], "indices_int64", 1, axis=-1)


READERS: Readers = {
    "GATHER": read_gather,
    "REVERSE_SEQUENCE": read_reverse_sequence,
    "WHERE": read_where,
    "ONE_HOT": read_one_hot,
    "TOPK_V2": read_topk,
}


def write_gather(op: Op, w: Writing) -> None:
    """GATHER."""
    axis = w.axis(op, op["axis"])
    data, indices = (w.tensor(name) for name in op.inputs)
    if data.dtype in ("float64", "uint32") and axis == 0 and indices.rank == 1 and not op["batch_dims"]:  # which GATHER does not have
        w.emit("EMBEDDING_LOOKUP", [_indices(op, w, axis, wide=False), data.name], op.outputs)
        return
    w.emit("GATHER", [op.inputs[0], _indices(op, w, axis)], op.outputs, axis=axis, batchDims=op["batch_dims"])


def _indices(op: Op, w: Writing, axis: int, wide: bool = True) -> str:
    """The indices of a Gather; those that count from the end count from the start in TFLite."""
    data, size = w.operand(op, 1).data, (w.operand(op).shape or ("",) * (axis + 1))[axis]
    if is_never_negative(w, op.inputs[1]) if data is None else (data >= 0).all():
        return w.index(op, 1, wide=wide)
    if data is None or not isinstance(size, int):
        return wrap_negative_indices(w, w.index(op, 1, wide=wide), op.inputs[0], axis)
    return w.variant(op.inputs[1], f"int32 of {size}", np.where(data < 0, data + size, data).astype(np.int32), None)


def write_reverse_sequence(op: Op, w: Writing) -> None:
    """REVERSE_SEQUENCE, whose kernel knows positive axes alone."""
    time, batch = (w.axis(op, op[name]) for name in ("time_axis", "batch_axis"))
    w.emit("REVERSE_SEQUENCE", [op.inputs[0], w.index(op, 1, wide=True)], op.outputs, seqDim=time, batchDim=batch)


def write_non_zero(op: Op, w: Writing) -> None:
    """NonZero as WHERE, which gives a row for each: columns are a TRANSPOSE after it."""
    columns = w.result(op)
    reader = w.successor(columns.name, "Transpose")
    if reader is not None and tuple(reader["perm"]) == (1, 0):
        w.absorb(reader)
        w.emit("WHERE", op.inputs, reader.outputs)
        return
    rows = w.emit_new("WHERE", op.inputs, f"{columns.name}/rows", "int64", None if columns.shape is None else columns.shape[::-1])
    w.transpose(rows, [1, 0], columns.name)


#: Types of values that LiteRT's ONE_HOT has (one_hot.cc).
_ONE_HOT = ("float32", "int32", "int64", "int8", "uint8", "bool")


def write_one_hot(op: Op, w: Writing) -> None:
    """ONE_HOT; values of types that it does not have are chosen where one of truth values is true."""
    result, axis = w.result(op), int(op["axis"])
    if result.dtype == "string":
        raise w.unsupported_error(op, "string values, which neither ONE_HOT nor SELECT_V2 takes,", rule="operand-types")
    if axis < -1:  # -1 alone counts from the end
        axis = w.axis(op, axis, result.name)
    off, on = (_element(op, w, i, f"{result.name}/{hint}") for i, hint in enumerate(("off", "on")))
    depth = _depth(op, w)
    indices = _indices_of_one_hot(op, w, depth)
    if result.dtype in _ONE_HOT:
        w.emit("ONE_HOT", [indices, depth, on, off], op.outputs, axis=axis)
        return
    true, false = (w.const(np.array(value), f"{result.name}/{value}".lower()) for value in (True, False))
    where = w.emit_new("ONE_HOT", [indices, depth, true, false], f"{result.name}/where", "bool", result.shape, axis=axis)
    w.emit("SELECT_V2", [where, on, off], op.outputs)


def _depth(op: Op, w: Writing) -> str:
    """The depth of a OneHot as one int32 without axes."""
    hint = f"{op.outputs[0]}/depth"
    if w.operand(op, 1).data is not None:
        return w.ints(w.integers(op, 1)[0], hint)
    name = w.index(op, 1)
    if w.tensor(name).rank == 0:
        return name
    return w.reshape(name, [], w.add(hint, "int32", ()))


def _element(op: Op, w: Writing, index: int, hint: str) -> str:
    """One of the two values of a OneHot, which may be computed at run time."""
    values = w.operand(op, 2)
    if values.data is not None:
        return w.const(values.data.reshape(-1)[index], hint, values.quantization)
    name = w.add(hint, values.dtype, (1,), None, values.quantization)
    w.emit("SLICE", [values.name, w.ints([index], f"{hint}/begin"), w.ints([1], f"{hint}/size")], [name])
    return name


def _indices_of_one_hot(op: Op, w: Writing, depth: str) -> str:
    """The indices of a OneHot, of which negative ones count from the end in ONNX; real ones are cut to whole numbers.

    Those outside of the depth are legal. LiteRT's kernel looks at the lower 32 bits alone: int64 is clipped to what is just outside.
    """
    given = w.operand(op)
    is_known = given.data is not None
    counts = (given.data >= 0).all() if given.data is not None else is_never_negative(w, given.name)
    name = w.index(op, 0, wide=given.dtype == "int64" and not is_known)
    if not op["wraps"] or counts or given.dtype.startswith("u"):
        return name
    tensor, size = w.tensor(name), w.tensor(depth)
    if tensor.data is not None and size.data is not None:
        return w.const(np.where(tensor.data < 0, tensor.data + size.data, tensor.data), f"{name}/from_the_front")
    if tensor.dtype == "int64":
        depth = w.cast(depth, "int64") if size.data is None else w.const(size.data.astype(np.int64), f"{name}/depth")
    zero, least = (w.const(np.array(value, numpy_dtype(tensor.dtype)), f"{name}/{hint}") for value, hint in ((0, "zero"), (-1, "least")))

    def emit_step(hint: str, kernel: str, *operands: str, dtype: str = tensor.dtype) -> str:
        return w.emit_new(kernel, operands, f"{name}/{hint}", dtype, tensor.shape)

    moved = emit_step("moved", "ADD", name, depth)
    negative = emit_step("negative", "LESS", name, zero, dtype="bool")
    found = emit_step("from_the_front", "SELECT_V2", negative, moved, name)
    if tensor.dtype == "int64":
        found = emit_step("not_above", "MINIMUM", found, depth)
        found = emit_step("within", "MAXIMUM", found, least)
    return found


#: Kinds whose results are never negative, besides those that say places or sizes.
_NEVER_NEGATIVE = ("NonZero", "FloorMod", "Unique")


def is_never_negative(w: Writing, name: str) -> bool:
    """Whether indices computed at run time are certainly not negative: TFLite has no indices from the end."""
    if w.graph.is_from("tflite") or w.graph.metadata.get(SOURCE, "").endswith(".tflite"):
        return True
    while (op := w.producer(name)) is not None and _keeps_sign(op):
        name = op.inputs[0]
        if w.graph[name].dtype.startswith("u") or w.graph[name].dtype == "bool":
            return True
    if op is None:
        return name in w.counters
    kind = kind_of(op)
    says_places = kind.ranks and not (kind.rule == "move" and name == op.outputs[0])  # the values of a TopK may be negative
    return says_places or kind.lists_sizes or op.kind in _NEVER_NEGATIVE or _is_shifted_to_zero(w, w.producer(name, "Add"))


def _keeps_sign(op: Op) -> bool:
    """Whether each element of the result is one of the first input, perhaps in another type."""
    kind = kind_of(op)
    return kind.casts or (kind.by_place and kind.moved_inputs(op) == [op.inputs[0]])


def _is_shifted_to_zero(w: Writing, op: Op | None) -> bool:
    """Whether an Add shifts the codes of a narrow type to zero and above, as for indices of a table (pass unary_to_table)."""
    for name, other in () if op is None else (op.inputs, op.inputs[::-1]):
        maker, offset = w.producer(name, "Cast"), w.graph.constant(other)
        codes = "" if maker is None else w.graph[maker.inputs[0]].dtype
        if codes in ("int8", "int16") and offset is not None and offset.size and int(offset.min()) >= -integer_range(codes)[0]:
            return True
    return False


def wrap_negative_indices(w: Writing, indices: str, data: str, axes: int | Sequence[int]) -> str:
    """Indices of axes of the data, those that count from the end too, as the remainder that counts from the front."""
    tensor, shape = w.tensor(indices), w.tensor(data).shape
    known = [] if shape is None else [shape[axis] for axis in np.ravel(axes)]
    if known and all(isinstance(size, int) for size in known):
        sizes = w.const(np.array(known, tensor.dtype).reshape(np.shape(axes)), f"{indices}/size")
    else:
        sizes = sizes_of(w, data, tensor.dtype, axes)
    return w.emit_new("FLOOR_MOD", [indices, sizes], f"{indices}/from_the_front", tensor.dtype, tensor.shape)


def sizes_of(w: Writing, name: str, dtype: str = "int32", axes: int | Sequence[int] | None = None) -> str:
    """The sizes of a tensor that are dynamic; of these axes alone, of one without an axis of its own."""
    found = w.emit_new("SHAPE", [name], f"{name}/sizes", dtype, (w.tensor(name).rank or 0,))
    if axes is None:
        return found
    chosen = w.add(f"{name}/sizes_of_axes", dtype, np.shape(axes))
    w.emit("GATHER", [found, w.ints(axes, f"{name}/axes")], [chosen], axis=0)
    return chosen


def write_topk(op: Op, w: Writing) -> None:
    """TOPK_V2, whose indices are int32, along the last axis: others go there and back; the smallest are the largest of the negative."""
    data, rank = w.operand(op), w.operand(op).rank
    axis = w.axis(op, op["axis"], data.name)
    if not op["largest"] and (data.is_quantized or data.dtype not in ("float32", "int32", "int64")):
        raise w.unsupported_error(op, f"the smallest of {data.dtype}", rule="operand-types")
    k = w.index(op, 1) if w.operand(op, 1).data is None else w.ints(w.integers(op, 1)[0], f"{op.outputs[0]}/k")
    perm = [*(other for other in range(rank or 0) if other != axis), axis]
    turns, value = rank is not None and axis != rank - 1, data.name
    if turns:
        value = _write_transpose(w, value, perm, f"{data.name}/{axis}_last")
    if not op["largest"]:
        (value,) = w.emit("NEG", [value], [w.add(f"{data.name}/negative", data.dtype, w.tensor(value).shape)])
    values, indices = op.outputs[0], w.absorb_int32_cast(op, 1)
    shape = w.tensor(values).shape
    inner = tuple(shape[i] for i in perm) if shape is not None and turns else shape
    wide = w.tensor(indices)
    found = indices if wide.dtype == "int32" and not turns else w.add(f"{wide.name}/int32", "int32", inner)
    best = values if op["largest"] and not turns else w.like(f"{values}/found", data.name, inner)
    w.emit("TOPK_V2", [value, k], [best, found])
    if not op["largest"]:
        (best,) = w.emit("NEG", [best], [w.add(f"{values}/smallest", data.dtype, inner) if turns else values])
    if turns:
        back = [perm.index(other) for other in range(len(perm))]
        _write_transpose(w, best, back, values, exactly=True)
        found = _write_transpose(w, found, back, indices if wide.dtype == "int32" else f"{wide.name}/turned", exactly=wide.dtype == "int32")
    if wide.dtype != "int32":
        w.emit("CAST", [found], [wide.name])


def _write_transpose(w: Writing, name: str, perm: list[int], result: str, *, exactly: bool = False) -> str:
    """A TRANSPOSE of `name`, called `result`, which the graph has if `exactly`."""
    shape = w.tensor(name).shape
    wanted = result if exactly else w.like(result, name, None if shape is None else tuple(shape[axis] for axis in perm))
    return w.transpose(name, perm, wanted)


WRITERS: Writers = {
    "Gather": write_gather,
    "ReverseSequence": write_reverse_sequence,
    "NonZero": write_non_zero,
    "OneHot": write_one_hot,
    "TopK": write_topk,
}
