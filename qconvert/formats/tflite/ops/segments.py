"""Rows put, or added up, at places that other inputs say; diagonals; gaps between elements; tables of embeddings."""

from __future__ import annotations

from functools import partial

from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op


def read_embedding_lookup(r: Reading) -> None:
    """EMBEDDING_LOOKUP: rows of a table; a table of integers gives float values where the result has them (the "hybrid" kernel)."""
    table, result = r.tensor(1), r.result()
    if table.dtype == result.dtype:
        r.emit("Gather", [table.name, r.int64(0)], axis=0)
        return
    if table.quantization is None or table.dtype not in ("int8", "uint8", "int4"):
        raise r.unsupported_error(f"a table of {table.dtype} without scales, and a result of {result.dtype}", rule="operand-types")
    real = r.emit("Dequantize", [table.name], [r.intermediate("dequantized", "float32", table.shape, base=table.name)])[0]
    r.emit("Gather", [real, r.int64(0)], axis=0)


def read_segment_sum(r: Reading) -> None:
    """SEGMENT_SUM."""
    r.emit_plain("SegmentSum", [r.input(0), r.int64(1)])


def _read_unsorted(reduction: str, r: Reading) -> None:
    """UNSORTED_SEGMENT_…: rows of negative segments are left out."""
    r.emit_plain("UnsortedSegment", [r.input(0), r.int64(1), r.int64(2)], reduction=reduction)


def read_dynamic_update_slice(r: Reading) -> None:
    """DYNAMIC_UPDATE_SLICE: (data, update, start)."""
    r.emit_stored("DynamicUpdateSlice", [r.input(0), r.input(1), r.int64(2)])


def read_sparse_to_dense(r: Reading) -> None:
    """SPARSE_TO_DENSE: (indices, shape, values, default)."""
    r.emit_stored("SparseToDense", [r.int64(0), r.int64(1), r.input(2), r.input(3)])


def read_stablehlo_pad(r: Reading) -> None:
    """STABLEHLO_PAD: (data, filler)."""
    low, high, interior = (r.integers(name) for name in ("edgePaddingLow", "edgePaddingHigh", "interiorPadding"))
    r.emit_stored("InteriorPad", low=low, high=high, interior=interior)


def read_dilate(r: Reading) -> None:
    """DILATE: (data, dilations, filler)."""
    gaps = tuple(n - 1 for n in r.ints(1))
    if min(gaps, default=0) < 0:
        raise r.invalid(f"dilations {[n + 1 for n in gaps]} are not positive", rule="not-positive")
    edges = (0,) * len(gaps)
    r.emit_stored("InteriorPad", [r.input(0), r.input(2)], low=edges, high=edges, interior=gaps)


READERS: dict[str, ReadFunction] = {
    "EMBEDDING_LOOKUP": read_embedding_lookup,
    "SEGMENT_SUM": read_segment_sum,
    **{f"UNSORTED_SEGMENT_{name.upper()}": partial(_read_unsorted, name) for name in ("sum", "prod", "max", "min")},
    "DYNAMIC_UPDATE_SLICE": read_dynamic_update_slice,
    "SPARSE_TO_DENSE": read_sparse_to_dense,
    "STABLEHLO_PAD": read_stablehlo_pad,
    "DILATE": read_dilate,
}


def write_segment_sum(op: Op, w: Writing) -> None:
    """SEGMENT_SUM."""
    w.emit("SEGMENT_SUM", [op.inputs[0], w.index(op, 1)], op.outputs)


def write_unsorted_segment(op: Op, w: Writing) -> None:
    """UNSORTED_SEGMENT_…; the number of segments is a scalar or one element."""
    w.emit(f"UNSORTED_SEGMENT_{op['reduction'].upper()}", [op.inputs[0], w.index(op, 1), w.index(op, 2)], op.outputs)


def write_dynamic_update_slice(op: Op, w: Writing) -> None:
    """DYNAMIC_UPDATE_SLICE."""
    w.emit("DYNAMIC_UPDATE_SLICE", [*op.inputs[:2], w.index(op, 2, wide=True)], op.outputs)


def write_sparse_to_dense(op: Op, w: Writing) -> None:
    """SPARSE_TO_DENSE, whose indices and shape have one type."""
    sizes = [w.index(op, position) for position in (0, 1)]
    w.emit("SPARSE_TO_DENSE", [*sizes, *op.inputs[2:]], op.outputs, validateIndices=False)


def write_interior_pad(op: Op, w: Writing) -> None:
    """DILATE where there are gaps alone, else STABLEHLO_PAD."""
    if not any((*op["low"], *op["high"])):
        dilations = w.ints([gap + 1 for gap in op["interior"]], f"{op.outputs[0]}/dilations")
        w.emit("DILATE", [op.inputs[0], dilations, op.inputs[1]], op.outputs)
        return
    w.emit("STABLEHLO_PAD", op.inputs, op.outputs, edgePaddingLow=op["low"], edgePaddingHigh=op["high"], interiorPadding=op["interior"])


WRITERS: dict[str, WriteFunction] = {
    "SegmentSum": write_segment_sum,
    "UnsortedSegment": write_unsorted_segment,
    "DynamicUpdateSlice": write_dynamic_update_slice,
    "SparseToDense": write_sparse_to_dense,
    "InteriorPad": write_interior_pad,
}
