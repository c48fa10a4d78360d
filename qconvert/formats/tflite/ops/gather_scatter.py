"""Reads and writes at places that indices say: GatherND and GatherElements, ScatterND and ScatterElements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from qconvert.formats.tflite.ops.gather import is_never_negative, sizes_of, wrap_negative_indices
from qconvert.formats.tflite.ops.one_to_one import make_indexed_reader
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Array, Op

#: The most elements of a constant that is made of a shape alone.
_MOST_PLACES = 2**24


def read_scatter_nd(r: Reading) -> None:
    """SCATTER_ND: (indices, updates, shape) into zeros; values at the same index add up. The kernel knows stored integers
    alone: those that may meet at one place are added as plain numbers.
    """
    updates, result, indices = r.tensor(1), r.result(), r.constant(0)
    shape = r.int64(2)
    if indices is not None and (indices.ndim == 0 or not indices.shape[-1]):
        raise r.invalid(f"indices of shape {indices.shape}", rule="wrong-rank")
    distinct = indices is not None and _is_distinct(indices)
    if updates.is_quantized and not distinct:
        background = r.const(np.zeros((), updates.dtype), "zero")
        plain = r.emit_new("Expand", [background, shape], "zeros", updates.dtype, result.shape)
        r.emit_plain("ScatterND", [plain, r.int64(0), r.input(1)], reduction="add")
        return
    scalar = r.const(np.zeros((), updates.dtype), "zero", updates.quantization)
    zeros = r.emit("Expand", [scalar, shape], [r.like("zeros", updates, result.shape)])[0]
    r.emit("ScatterND", [zeros, r.int64(0), r.input(1)], reduction="none" if distinct else "add")


READERS: Readers = {"GATHER_ND": make_indexed_reader("GatherND"), "SCATTER_ND": read_scatter_nd}


def write_gather_nd(op: Op, w: Writing) -> None:
    """GATHER_ND, whose kernel takes no negative indices; with batch dimensions the indices begin with the batch."""
    w.emit("GATHER_ND", [op.inputs[0], _write_nd_indices(op, w)], op.outputs)


def _write_nd_indices(op: Op, w: Writing) -> str:
    batch, data, indices = int(op["batch_dims"]), w.operand(op), w.operand(op, 1)
    if not batch and (indices.data is None or (data.static_shape is None and (indices.data < 0).any())):
        return _wrap_computed_indices(op, w, w.index(op, 1, wide=True))
    shape = w.shape(indices.name, op)
    _require_small(op, w, shape)
    front = [np.indices(shape[:-1], np.int32)[axis] for axis in range(batch)]
    if indices.data is not None:
        known = _wrap_constant_indices(op, w, indices.data, list(range(batch, batch + shape[-1])))
        return w.const(np.stack([*front, *np.moveaxis(known, -1, 0)], -1), f"{op.outputs[0]}/places") if batch else w.variant(
            indices.name, f"int32 of {data.shape}", known, None)  # fmt: skip
    places = w.const(np.stack(front, -1), f"{op.outputs[0]}/batch")
    return _write_concat(w, op, [places, _wrap_computed_indices(op, w, w.index(op, 1))], (*shape[:-1], batch + shape[-1]))


def _require_small(op: Op, w: Writing, sizes: Sequence[int]) -> None:
    """Raises UnsupportedError if a constant of so many elements would be too large for what it is good for."""
    if math.prod(sizes) > _MOST_PLACES:
        raise w.unsupported_error(op, f"{' x '.join(map(str, sizes))} places, more than {_MOST_PLACES},", rule="too-many-places")


def _wrap_computed_indices(op: Op, w: Writing, indices: str, axis: int | None = None) -> str:
    """Indices that are computed at run time, counted from the front: of one axis, or of as many after the batches as a row has."""
    if is_never_negative(w, op.inputs[1]):
        return indices
    if axis is not None:
        return wrap_negative_indices(w, indices, op.inputs[0], axis)
    first, count = int(op["batch_dims"]) if op.kind == "GatherND" else 0, (w.tensor(indices).shape or ("",))[-1]
    return wrap_negative_indices(w, indices, op.inputs[0], range(first, first + count)) if isinstance(count, int) else indices


def _wrap_constant_indices(op: Op, w: Writing, indices: Array, axes: list[int]) -> Array:
    """Constant indices, of which the last axis has one for each of `axes` of the data, counted from the front."""
    if (indices >= 0).all():
        return indices.astype(np.int32)
    sizes = np.array([w.shape(op.inputs[0], op, slice(axis, axis + 1))[0] for axis in axes])
    return np.where(indices < 0, indices + sizes, indices).astype(np.int32)


def _write_concat(w: Writing, op: Op, parts: list[str], shape: tuple[int, ...]) -> str:
    return w.emit_new("CONCATENATION", parts, f"{op.outputs[0]}/places", "int32", shape, axis=len(shape) - 1)


def _element_indices(op: Op, w: Writing) -> str:
    """The whole places of elements of which input 1 says the index along one axis; the others are their own."""
    indices, axis = w.operand(op, 1), w.axis(op, op["axis"])
    shape = w.shape(indices.name, op)
    _require_small(op, w, shape)
    places: Array = np.stack(list(np.indices(shape, np.int32)), -1) if shape else np.zeros((0,), np.int32)
    if indices.data is not None:
        places[..., axis] = _wrap_constant_indices(op, w, indices.data[..., None], [axis])[..., 0]
        return w.const(places, f"{op.outputs[0]}/places")
    along = w.add(f"{indices.name}/along", "int32", (*shape, 1))
    whole = _wrap_computed_indices(op, w, w.index(op, 1), axis)
    w.reshape(whole, [*shape, 1], along)
    sides = [(places[..., :axis], "front"), (places[..., axis + 1 :], "behind")]
    before, following = ([w.const(part, f"{op.outputs[0]}/{hint}")] if part.shape[-1] else [] for part, hint in sides)
    parts = [*before, along, *following]
    return _write_concat(w, op, parts, (*shape, len(shape))) if len(parts) > 1 else along


def write_gather_elements(op: Op, w: Writing) -> None:
    """GatherElements as GATHER_ND at whole places."""
    indices = w.operand(op, 1)
    if indices.static_shape is not None:
        w.emit("GATHER_ND", [op.inputs[0], _element_indices(op, w)], op.outputs)
        return
    result = op.outputs[0]
    flat = w.like(f"{result}/list", op.inputs[0], ("count",))
    w.emit("GATHER_ND", [op.inputs[0], _dynamic_element_indices(op, w)[0]], [flat])
    w.emit("RESHAPE", [flat, sizes_of(w, indices.name)], [result])


def _dynamic_element_indices(op: Op, w: Writing) -> tuple[str, str]:
    """The rows of _element_indices() as a list, and as many that are true, where the sizes of the indices are dynamic.

    The rows are those of a tensor that is true everywhere, in which the column of the axis is the index.
    """
    result, axis = op.outputs[0], w.axis(op, op["axis"])
    indices = _wrap_computed_indices(op, w, w.index(op, 1), axis)
    shape = w.tensor(indices).shape or ()
    rank = len(shape)
    true, rows = w.add(f"{result}/everywhere", "bool", shape), w.add(f"{result}/rows", "int64", ("count", rank))
    w.emit("EQUAL", [indices, indices], [true])
    w.emit("WHERE", [true], [rows])
    column = w.add(f"{result}/column", "int32", ("count", 1))
    w.reshape(indices, [-1, 1], column)
    own = np.arange(rank) == axis
    parts = [w.add(f"{result}/{hint}", "int32", ("count", rank)) for hint in ("other_axes", "own_axis", "places")]
    for name, kept, part in ((w.cast(rows), ~own, parts[0]), (column, own, parts[1])):
        w.emit("MUL", [name, w.const(kept.astype(np.int32), f"{part}/kept")], [part])
    w.emit("ADD", parts[:2], parts[2:])
    return parts[2], true


def write_scatter_nd(op: Op, w: Writing) -> None:
    """ScatterND; into zeros it is SCATTER_ND itself."""
    indices = w.operand(op, 1)
    rows = None
    if indices.data is not None:
        rows = _wrap_constant_indices(op, w, indices.data, list(range(indices.data.shape[-1])))
    maker = w.producer(op.inputs[0], "Expand")
    background = w.graph.constant(op.inputs[0] if maker is None else maker.inputs[0])
    distinct = rows is None or _is_distinct(rows)
    places = _wrap_computed_indices(op, w, w.index(op, 1)) if rows is None else w.variant(indices.name, "int32", rows, None)
    # SCATTER_ND leaves the stored 0 where nothing is written.
    if background is not None and not background.any() and (op["reduction"] == "add" or (op["reduction"] == "none" and distinct)):
        if maker is not None and w.successor(op.inputs[0]) is not None:
            sizes = w.index(maker, 1)
            w.retract(maker)
        else:
            sizes = w.ints(w.shape(op.outputs[0], op), f"{op.outputs[0]}/shape")
        w.emit("SCATTER_ND", [places, op.inputs[2], sizes], op.outputs)
        return
    _scatter(op, w, places, rows)


def write_scatter_elements(op: Op, w: Writing) -> None:
    """ScatterElements as ScatterND at whole places."""
    if all(w.tensor(name).static_shape is not None for name in op.inputs):
        places = _element_indices(op, w)
        _scatter(op, w, places, w.tensor(places).data)
        return
    data, result, updates = w.operand(op), op.outputs[0], w.operand(op, 2)
    if op["reduction"] in _SEGMENTS:
        raise w.unsupported_error(op, f"reduction {op['reduction']!r} of dynamic dimensions", rule="dynamic-dimension")
    places, true = _dynamic_element_indices(op, w)
    flat, ones = w.like(f"{result}/updates", updates.name, ("count",)), w.add(f"{result}/ones", "bool", ("count",))
    for name, item in ((updates.name, flat), (true, ones)):
        w.reshape(name, [-1], item, "list")
    sizes = sizes_of(w, data.name)

    def mark_places() -> str:
        counts, mask = w.add(f"{result}/counts", "int32", data.shape), w.add(f"{result}/mask", "bool", data.shape)
        w.emit("SCATTER_ND", [places, w.cast(ones), sizes], [counts])
        return w.emit("CAST", [counts], [mask])[0]

    _join_updates(op, w, [places, flat, sizes], mark_places)


def _join_updates(op: Op, w: Writing, operands: Sequence[str], mark_places: Callable[[], str]) -> None:
    """Updates among zeros by SCATTER_ND, added to the data, or in their places where a mask is true."""
    data, result = w.operand(op), op.outputs[0]
    alone = w.emit("SCATTER_ND", operands, [w.like(f"{result}/alone", op.inputs[2], data.shape)])[0]
    if op["reduction"] != "add":
        w.emit("SELECT_V2", [mark_places(), alone, data.name], [result])
        return
    if w.result(op).is_quantized:  # the stored zeros are no real ones
        raise w.unsupported_error(op, f"quantized {data.name!r}, to which updates are added,", rule="quantized-data")
    w.emit("ADD", [data.name, alone], [result])


def _is_distinct(rows: Array) -> bool:
    flat = rows.reshape(-1, rows.shape[-1])
    return len(np.unique(flat, axis=0)) == len(flat)


def _scatter(op: Op, w: Writing, places: str, rows: Array | None) -> None:
    """Updates at places of data: SCATTER_ND puts them among zeros, a mask, or a sum, joins both.

    ONNX wants places to be distinct where nothing is reduced; SCATTER_ND adds what meets at one place.
    """
    data, updates = op.inputs[0], op.inputs[2]
    if op["reduction"] in _SEGMENTS:
        _reduce_at(op, w, places)
        return
    if op["reduction"] == "none" and rows is not None and not _is_distinct(rows):
        raise w.unsupported_error(op, "several updates at one index", rule="duplicate-index")
    sizes = w.ints(w.shape(data, op), f"{op.outputs[0]}/shape")
    _join_updates(op, w, [places, updates, sizes], lambda: _mask(op, w, places, rows, sizes))


#: Reductions: the operator that makes one value of the updates of each place, and the one that joins it with the data.
_SEGMENTS = {"mul": ("PROD", "MUL"), "max": ("MAX", "MAXIMUM"), "min": ("MIN", "MINIMUM")}


def _reduce_at(op: Op, w: Writing, places: str) -> None:
    """Updates that are joined at their places: an UNSORTED_SEGMENT operator over the numbers of the places in the flat data, whose value
    for a place without updates changes nothing."""
    data, result, updates = w.operand(op), op.outputs[0], w.operand(op, 2)
    shape, wanted = w.shape(data.name, op), w.shape(places, op)
    if data.dtype not in ("float32", "int32") or (data.is_quantized and op["reduction"] == "mul"):
        raise w.unsupported_error(op, f"reduction {op['reduction']!r} of {data.dtype}", rule="operand-types")
    depth, known = wanted[-1], w.tensor(places).data
    rows = math.prod(shape[:depth])
    strides = np.array([math.prod(shape[i + 1 : depth]) for i in range(depth)], np.int32)
    if known is not None:
        ids = w.ints((known.astype(np.int64) * strides).sum(-1).reshape(-1).tolist(), f"{result}/ids")
    else:
        numbers, total = w.add(f"{result}/parts", "int32", wanted), w.add(f"{result}/numbers", "int32", wanted[:-1])
        narrow = places if w.tensor(places).dtype == "int32" else w.cast(places)
        w.emit("MUL", [narrow, w.const(strides, f"{result}/strides")], [numbers])
        w.emit("SUM", [numbers, w.ints([len(wanted) - 1], f"{result}/last")], [total], keepDims=False)
        ids = w.add(f"{result}/ids", "int32", (math.prod(wanted[:-1]),))
        w.emit("RESHAPE", [total, w.ints([-1], f"{result}/list")], [ids])
    part, join = _SEGMENTS[str(op["reduction"])]
    inner = list(shape[depth:])
    flat = w.like(f"{result}/updates", updates.name, (math.prod(wanted[:-1]), *inner))
    w.reshape(updates.name, [-1, *inner] if 0 not in inner else list(w.tensor(flat).static_shape or ()), flat)
    joined, whole = (w.like(f"{result}/{hint}", data.name, sizes) for hint, sizes in (("joined", (rows, *inner)), ("whole", shape)))
    w.emit(f"UNSORTED_SEGMENT_{part}", [flat, ids, w.ints(rows, f"{result}/count")], [joined])
    w.emit("RESHAPE", [joined, w.ints(shape, f"{result}/shape")], [whole])
    w.emit(join, [data.name, whole], [result])


def _mask(op: Op, w: Writing, places: str, rows: Array | None, sizes: str) -> str:
    """Where something is written, of the shape of the data."""
    shape, result = w.shape(op.inputs[0], op), op.outputs[0]
    _require_small(op, w, shape)
    if rows is not None:
        sizes_along = np.array(shape[: rows.shape[-1]])
        if ((rows < -sizes_along) | (rows >= sizes_along)).any():
            raise w.unsupported_error(op, f"indices {places!r} outside of data of shape {shape}", rule="index-out-of-range")
        known = np.zeros(shape, bool)
        known[tuple(np.moveaxis(rows, -1, 0))] = True
        return w.const(known, f"{result}/mask")
    ones = w.const(np.ones(w.shape(op.inputs[2], op), np.int32), f"{result}/ones")
    counts, mask = w.add(f"{result}/counts", "int32", shape), w.add(f"{result}/mask", "bool", shape)
    w.emit("SCATTER_ND", [places, ones, sizes], [counts])
    w.emit("CAST", [counts], [mask])
    return mask


WRITERS: Writers = {
    "GatherND": write_gather_nd,
    "GatherElements": write_gather_elements,
    "ScatterND": write_scatter_nd,
    "ScatterElements": write_scatter_elements,
}
