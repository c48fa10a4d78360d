"""Reductions and searches."""

from __future__ import annotations

import numpy as np

from qconvert.plugin import Op
from qconvert_openvino.reading import Reading
from qconvert_openvino.writing import Writing

#: Canonical kind -> layer, and the function of OpenVINO's package.
_REDUCTIONS = {
    "ReduceMean": ("ReduceMean", "reduce_mean"), "ReduceSum": ("ReduceSum", "reduce_sum"), "ReduceProd": ("ReduceProd", "reduce_prod"),
    "ReduceMax": ("ReduceMax", "reduce_max"), "ReduceMin": ("ReduceMin", "reduce_min"), "ReduceL1": ("ReduceL1", "reduce_l1"),
    "ReduceL2": ("ReduceL2", "reduce_l2"), "ReduceAll": ("ReduceLogicalAnd", "reduce_logical_and"),
    "ReduceAny": ("ReduceLogicalOr", "reduce_logical_or"),
}  # fmt: skip
_LAYERS = {layer: kind for kind, (layer, _) in _REDUCTIONS.items()}


def read_reduction(r: Reading) -> None:
    """A reduction; over no axes OpenVINO copies the data."""
    axes = r.axes(1, r.rank())
    if not axes:
        r.emit("Identity", [r.value(0)])
        return
    r.emit(_LAYERS[r.node.type], [r.value(0), r.index(axes)], **({} if r.flag("keep_dims") else {"keepdims": 0}))


def write_reduction(op: Op, w: Writing) -> None:
    """A reduction; no axes at all, which mean all of them, are written as these."""
    data, axes = w.inputs(op)
    if w.graph[op.inputs[1]].static_shape == (0,):
        axes = w.numbers(range(data.get_partial_shape().rank.get_length()))
    w.finish(op, getattr(w.op, _REDUCTIONS[op.kind][1])(data, axes, bool(op["keepdims"])))


def read_topk(r: Reading) -> None:
    """TopK: values, and their indices."""
    largest = r.choice("mode", {"max": "1", "min": "0"})
    order = r.choice("sort", {"value": "1", "none": "0"}, "none")
    r.emit("TopK", [r.value(0), r.index([r.single(1, "a count")])], axis=r.integer("axis"), largest=int(largest), sorted=int(order))


def write_topk(op: Op, w: Writing) -> None:
    """TopK, sorted in either case: OpenVINO's `stable`, by which the first of equal values wins, requires it."""
    count, mode = w.integers_of(op, 1, "counts")[0], "max" if op["largest"] else "min"
    found = w.op.topk(w.value(op.inputs[0]), w.op.constant(count), int(op["axis"]), mode, "value", _index_type(op, w, 1), True)
    w.finish(op, found.output(0), found.output(1))


def write_arg(op: Op, w: Writing) -> None:
    """ArgMax and ArgMin: the index of a TopK of one; of equal values the first wins, as `stable` says."""
    data, axis = w.value(op.inputs[0]), int(op["axis"])
    mode = "max" if op.kind == "ArgMax" else "min"
    found = w.op.topk(data, w.op.constant(1), axis, mode, "value", _index_type(op, w, 0), True).output(1)
    w.finish(op, found if op["keepdims"] else w.op.squeeze(found, w.numbers([axis])))


def _index_type(op: Op, w: Writing, output: int) -> str:
    named = op.outputs[output] if output < len(op.outputs) else ""
    return "i32" if named and w.graph[named].dtype == "int32" else "i64"


def read_cum_sum(r: Reading) -> None:
    flags = {name: 1 for name in ("exclusive", "reverse") if r.flag(name)}
    r.emit("CumSum", [r.value(0)], axis=r.single(1, "an axis"), **flags)


def write_cum_sum(op: Op, w: Writing) -> None:
    w.finish(op, w.op.cum_sum(w.value(op.inputs[0]), w.op.constant(np.int64(op["axis"])), bool(op["exclusive"]), bool(op["reverse"])))


READERS = {**dict.fromkeys(_LAYERS, read_reduction), "TopK": read_topk, "CumSum": read_cum_sum}
WRITERS = {**dict.fromkeys(_REDUCTIONS, write_reduction), "TopK": write_topk, "ArgMax": write_arg, "ArgMin": write_arg,
           "CumSum": write_cum_sum}  # fmt: skip
