"""Rows put, or added up, at places that other inputs say; diagonals; gaps between elements; tables of embeddings; windows and slices of
StableHLO; UNIQUE."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.formats.tflite.ops.one_to_one import make_indexed_reader, make_indexed_writer, make_writer
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op
from qconvert.operators.segments import FUNCTIONS


def read_embedding_lookup(r: Reading) -> None:
    """EMBEDDING_LOOKUP: rows of a table; a table of integers gives float values where the result has them (the "hybrid" kernel)."""
    table, result = r.tensor(1), r.result()
    if table.dtype == result.dtype:
        r.emit("Gather", [table.name, r.int64(0)], axis=0)
        return
    if table.quantization is None or table.dtype not in ("int8", "uint8", "int4"):
        raise r.unsupported_error(f"a table of {table.dtype} without scales, and a result of {result.dtype}", rule="operand-types")
    real = r.emit_new("Dequantize", [table.name], "dequantized", "float32", table.shape, base=table.name)
    r.emit("Gather", [real, r.int64(0)], axis=0)


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


def write_unsorted_segment(op: Op, w: Writing) -> None:
    """UNSORTED_SEGMENT_…; the number of segments is a scalar or one element."""
    w.emit(f"UNSORTED_SEGMENT_{op['reduction'].upper()}", [op.inputs[0], w.index(op, 1), w.index(op, 2)], op.outputs)


def write_interior_pad(op: Op, w: Writing) -> None:
    """DILATE where there are gaps alone, else STABLEHLO_PAD."""
    if not any((*op["low"], *op["high"])):
        dilations = w.ints([gap + 1 for gap in op["interior"]], f"{op.outputs[0]}/dilations")
        w.emit("DILATE", [op.inputs[0], dilations, op.inputs[1]], op.outputs)
        return
    w.emit("STABLEHLO_PAD", op.inputs, op.outputs, edgePaddingLow=op["low"], edgePaddingHigh=op["high"], interiorPadding=op["interior"])


#: What the body of a window does -> one of FUNCTIONS.
_BODIES = {"Add": "add", "Mul": "mul", "Min": "min", "Max": "max", "And": "all", "Or": "any"}

#: Attributes of a StartGather -> options of STABLEHLO_GATHER.
_LISTS = {
    "offset_dims": "offsetDims",
    "start_index_map": "startIndexMap",
    "slice_sizes": "sliceSizes",
    "collapsed_dims": "collapsedSliceDims",
}


def read_reduce_window(r: Reading) -> None:
    """REDUCE_WINDOW: (data, first value, window, strides, dilations)."""
    number = r.option("reduceFunction")
    if not 1 <= number <= len(FUNCTIONS):
        raise r.unsupported_error(f"function number {number}", rule="function-not-covered")
    window, strides, dilations = (tuple(r.ints(index)) for index in range(2, 5))
    operands = [r.input(0), r.input(1)]
    r.emit_plain("ReduceWindow", operands, function=FUNCTIONS[number - 1], window=window, strides=strides, dilations=dilations)


def read_stablehlo_reduce_window(r: Reading) -> None:
    """STABLEHLO_REDUCE_WINDOW: (data, first value), which a subgraph combines with each element; edges and gaps are filled with it.

    Another function than those of REDUCE_WINDOW is refused, as LiteRT does (stablehlo_reduce_window.cc, GetReductionType).
    """
    body = r.body(int(r.option("bodySubgraphIndex")))
    op = body.ops[0] if len(body.ops) == 1 else None
    if (
        op is None
        or op.kind not in _BODIES
        or {*op.inputs} != {*body.inputs}
        or op.outputs != body.outputs
        or op.attributes.get("activation")
    ):
        raise r.unsupported_error(f"a body of {', '.join(item.kind for item in body.ops) or 'no operator'}", rule="body-not-covered")
    data, result, axes = r.tensor(), r.result(), len(r.integers("windowDimensions"))
    lists = [r.integers(name) for name in ("windowStrides", "windowDilations", "baseDilations")]
    edges = r.integers("padding")
    if any(len(item) != axes for item in lists) or len(edges) != 2 * axes or min(lists[2], default=1) < 1:
        raise r.invalid(f"windows of {axes} axes with {', '.join(str(list(item)) for item in (*lists, edges))}", rule="counts-differ")
    low, high, interior = edges[::2], edges[1::2], tuple(step - 1 for step in lists[2])
    name = r.input(0)
    if any((*edges, *interior)):
        name = r.reinterpret(name, None)
        sizes = data.static_shape
        wide = None if sizes is None or len(sizes) != axes else tuple(
            n + a + b + max(n - 1, 0) * gap for n, a, b, gap in zip(sizes, low, high, interior, strict=True)
        )  # fmt: skip
        filled = r.intermediate("filled", data.dtype, wide, base=result.name)
        r.emit_stored("InteriorPad", [name, r.reinterpret(r.input(1), None)], [filled], low=low, high=high, interior=interior)
        name = filled
    window = r.integers("windowDimensions")
    r.emit_plain("ReduceWindow", [name, r.input(1)], function=_BODIES[op.kind], window=window, strides=lists[0], dilations=lists[1])


def read_stablehlo_gather(r: Reading) -> None:
    """STABLEHLO_GATHER."""
    lists: dict[str, Any] = {name: () if r.option(field, None) is None else r.integers(field) for name, field in _LISTS.items()}
    r.emit_stored("StartGather", [r.input(0), r.int64(1)], index_vector_dim=int(r.option("indexVectorDim")), **lists)


def read_unique(r: Reading) -> None:
    """UNIQUE of a list: values and, for each element, which one it is."""
    values = r.result()
    if values.shape is not None and (len(values.shape) != 1 or isinstance(values.shape[0], int)):
        r.with_shape((f"{values.name}_count",))
    r.emit_plain("Unique")


def write_reduce_window(op: Op, w: Writing) -> None:
    """REDUCE_WINDOW."""
    names = [w.const(np.array(op[name], np.int64), f"{op.outputs[0]}/window") for name in ("window", "strides", "dilations")]
    number = FUNCTIONS.index(str(op["function"])) + 1
    w.emit("REDUCE_WINDOW", [*op.inputs, *names], op.outputs, reduceFunction=number)


def write_start_gather(op: Op, w: Writing) -> None:
    """STABLEHLO_GATHER."""
    fields = {field: op[name] for name, field in _LISTS.items()}
    w.emit("STABLEHLO_GATHER", [op.inputs[0], w.index(op, 1, wide=True)], op.outputs, indexVectorDim=op["index_vector_dim"], **fields)


READERS: Readers = {
    "EMBEDDING_LOOKUP": read_embedding_lookup,
    "SEGMENT_SUM": make_indexed_reader("SegmentSum", Reading.emit_plain),
    **{
        f"UNSORTED_SEGMENT_{name.upper()}": make_indexed_reader("UnsortedSegment", Reading.emit_plain, reduction=name)
        for name in ("sum", "prod", "max", "min")
    },
    "DYNAMIC_UPDATE_SLICE": make_indexed_reader("DynamicUpdateSlice", Reading.emit_stored),
    "SPARSE_TO_DENSE": make_indexed_reader("SparseToDense", Reading.emit_stored),
    "STABLEHLO_PAD": read_stablehlo_pad,
    "DILATE": read_dilate,
    "REDUCE_WINDOW": read_reduce_window,
    "STABLEHLO_REDUCE_WINDOW": read_stablehlo_reduce_window,
    "STABLEHLO_GATHER": read_stablehlo_gather,
    "UNIQUE": read_unique,
}

WRITERS: Writers = {
    "SegmentSum": make_indexed_writer("SEGMENT_SUM"),
    "UnsortedSegment": write_unsorted_segment,
    "DynamicUpdateSlice": make_indexed_writer("DYNAMIC_UPDATE_SLICE", wide=True),
    "SparseToDense": make_indexed_writer("SPARSE_TO_DENSE"),
    "InteriorPad": write_interior_pad,
    "ReduceWindow": write_reduce_window,
    "StartGather": write_start_gather,
    "Unique": make_writer("UNIQUE"),
}
