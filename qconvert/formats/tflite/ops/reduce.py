"""Reductions, running sums and searches along axes."""

from __future__ import annotations

from functools import partial

from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op

#: Types whose scales a kernel divides by (reduce.cc, PrepareMeanOrSum and PrepareProd).
_SCALED = {"ReduceMean": ("int8", "uint8", "int16"), "ReduceSum": ("int8", "uint8", "int16"), "ReduceProd": ("int8", "int16")}


def _read_reduction(kind: str, r: Reading) -> None:
    """A reduction over the axes in input 1; axes may be negative, a scalar, or computed at run time."""
    if kind in _SCALED:
        r.require_scales(*_SCALED[kind])
    rank, known = r.rank(), r.known_ints(1)
    if known is not None and not known:
        _read_copy(kind, r)
        return
    axes = r.int64(1) if known is None else r.list64(sorted({r.axis(axis, rank) for axis in known}), "axes")
    r.emit(kind, [r.input(0), axes], keepdims=int(r.option("keepDims", False)))


def _read_copy(kind: str, r: Reading) -> None:
    """A reduction over no axes, which LiteRT copies (reduce.cc), integers as they are; averages and sums come onto the result's
    quantization."""
    data, result = r.tensor(), r.result()
    if data.dtype == result.dtype and data.quantization == result.quantization:
        r.emit("Identity", [data.name])
    elif kind in ("ReduceMean", "ReduceSum") and data.is_quantized and result.is_quantized:
        r.emit("Requantize", [data.name])
    elif data.dtype == result.dtype:
        r.emit("Reinterpret", [data.name])
    else:
        raise r.unsupported_error(f"no axes and a result {result.name!r} of another type", rule="operand-types")


def read_cumsum(r: Reading) -> None:
    """CUMSUM along the axis in input 1."""
    exclusive, reverse = int(r.option("exclusive", False)), int(r.option("reverse", False))
    r.emit("CumSum", [r.input(0)], axis=r.axis(r.integer(1), r.rank()), exclusive=exclusive, reverse=reverse)


def _read_search(kind: str, r: Reading) -> None:
    """ARG_MAX and ARG_MIN along the axis in input 1. The canonical operators give int64."""
    r.emit_int64(kind, [r.input(0)], axis=r.axis(r.integer(1), r.rank()), keepdims=0)


_REDUCTIONS = {"MEAN": "ReduceMean", "SUM": "ReduceSum", "REDUCE_MAX": "ReduceMax", "REDUCE_MIN": "ReduceMin",
               "REDUCE_PROD": "ReduceProd", "REDUCE_ANY": "ReduceAny", "REDUCE_ALL": "ReduceAll"}  # fmt: skip
_SEARCHES = {"ARG_MAX": "ArgMax", "ARG_MIN": "ArgMin"}

READERS: Readers = {
    **{builtin: partial(_read_reduction, kind) for builtin, kind in _REDUCTIONS.items()},
    **{builtin: partial(_read_search, kind) for builtin, kind in _SEARCHES.items()},
    "CUMSUM": read_cumsum,
}


def reduced_axes(op: Op, w: Writing) -> str:
    """The axes of a reduction as an int32 tensor; without any, all axes."""
    if op.has(1) and w.operand(op, 1).shape != (0,):
        return w.index(op, 1)
    rank = w.operand(op).rank
    if rank is None:
        raise w.unsupported_error(op, f"{op.inputs[0]!r} of unknown rank", rule="unknown-rank")
    return w.ints(range(rank), f"{op.outputs[0]}/axes")


def _write_reduction(builtin: str, op: Op, w: Writing) -> None:
    w.emit(builtin, [op.inputs[0], reduced_axes(op, w)], op.outputs, keepDims=op["keepdims"])


def write_cumsum(op: Op, w: Writing) -> None:
    """CUMSUM."""
    axis = w.ints(w.axis(op, op["axis"]), f"{op.outputs[0]}/axis")
    w.emit("CUMSUM", [op.inputs[0], axis], op.outputs, exclusive=op["exclusive"], reverse=op["reverse"])


def _write_search(builtin: str, op: Op, w: Writing) -> None:
    """ARG_MAX and ARG_MIN, which never keep the axis: that is an EXPAND_DIMS after them."""
    axis = w.axis(op, op["axis"])
    result = w.tensor(w.absorb_int32_cast(op))
    target = result.name
    if op["keepdims"]:
        kept = [size for number, size in enumerate(result.shape or ()) if number != axis]
        target = w.add(f"{result.name}/searched", result.dtype, tuple(kept))
    number = w.ints(axis, f"{op.outputs[0]}/axis")
    w.emit(builtin, [op.inputs[0], number], [target])
    if target != result.name:
        w.emit("EXPAND_DIMS", [target, number], [result.name])


WRITERS: Writers = {
    **{kind: partial(_write_reduction, builtin) for builtin, kind in _REDUCTIONS.items()},
    **{kind: partial(_write_search, builtin) for builtin, kind in _SEARCHES.items()},
    "CumSum": write_cumsum,
}
