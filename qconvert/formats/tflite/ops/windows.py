"""REDUCE_WINDOW, STABLEHLO_REDUCE_WINDOW and STABLEHLO_GATHER; UNIQUE."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.formats.tflite.ops.one_to_one import make_writer
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op
from qconvert.operators.windows import FUNCTIONS

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


READERS: dict[str, ReadFunction] = {
    "REDUCE_WINDOW": read_reduce_window,
    "STABLEHLO_REDUCE_WINDOW": read_stablehlo_reduce_window,
    "STABLEHLO_GATHER": read_stablehlo_gather,
    "UNIQUE": read_unique,
}


def write_reduce_window(op: Op, w: Writing) -> None:
    """REDUCE_WINDOW."""
    names = [w.const(np.array(op[name], np.int64), f"{op.outputs[0]}/window") for name in ("window", "strides", "dilations")]
    number = FUNCTIONS.index(str(op["function"])) + 1
    w.emit("REDUCE_WINDOW", [*op.inputs, *names], op.outputs, reduceFunction=number)


def write_start_gather(op: Op, w: Writing) -> None:
    """STABLEHLO_GATHER."""
    fields = {field: op[name] for name, field in _LISTS.items()}
    w.emit("STABLEHLO_GATHER", [op.inputs[0], w.index(op, 1, wide=True)], op.outputs, indexVectorDim=op["index_vector_dim"], **fields)


WRITERS: dict[str, WriteFunction] = {
    "ReduceWindow": write_reduce_window,
    "StartGather": write_start_gather,
    "Unique": make_writer("UNIQUE"),
}
