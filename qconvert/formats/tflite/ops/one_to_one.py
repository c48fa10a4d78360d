"""Operators that are a canonical kind as they stand, with the same operands and without attributes: one row says both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from qconvert.formats.tflite.reading import Readers, ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writers, Writing
from qconvert.graph import Op
from qconvert.operators import KINDS


def _read_real(r: Reading, kind: str, **attributes: Any) -> None:
    """A function of real numbers means nothing on integers without a scale: its kernel divides by that."""
    r.require_scales()
    r.emit(kind, **attributes)


def _read_numbers(r: Reading, kind: str) -> None:
    """Kernels of int8 and int16 take stored integers for plain numbers, and wrap their results around."""
    if r.tensor().dtype in ("int8", "int16"):
        r.emit_plain(kind)
    else:
        r.emit(kind)


#: What integers are to a kernel -> how its operator is read: values on their scales if they have some, real ones that need scales, stored
#: integers that it compares or moves whatever their scales, or plain numbers, of all types or of narrow ones alone.
_READ: dict[str, Callable[..., Any]] = {
    "values": Reading.emit,
    "real": _read_real,
    "stored": Reading.emit_stored,
    "plain": Reading.emit_plain,
    "numbers": _read_numbers,
}
_OPERATORS = {
    "values": "SQUARED_DIFFERENCE:SquaredDifference ABS:Abs SQUARE:Square ROUND:Round FLOOR:Floor CEIL:Ceil SIGN:Sign ADD_N:Sum "
              "ZEROS_LIKE:ZerosLike LOGICAL_AND:And LOGICAL_OR:Or LOGICAL_NOT:Not RANGE:Range RANK:Rank BROADCAST_ARGS:BroadcastArgs",
    "real": "RELU:Relu HARD_SWISH:HardSwish LOGISTIC:Sigmoid TANH:Tanh EXP:Exp LOG:Log SQRT:Sqrt RSQRT:Rsqrt SIN:Sin COS:Cos",
    "stored": "MATRIX_SET_DIAG:MatrixSetDiag",
    "plain": "MATRIX_DIAG:MatrixDiag",
    "numbers": "FLOOR_DIV:FloorDiv FLOOR_MOD:FloorMod NEG:Neg",
}  # fmt: skip


def make_reader(kind: str, integers: str = "values", **attributes: Any) -> ReadFunction:
    """The reader of an operator that is the canonical `kind` with these attributes; `integers` says what they are to its kernel."""
    return partial(_READ[integers], kind=kind, **attributes)


def make_indexed_reader(kind: str, emit: Callable[..., Any] = Reading.emit, **attributes: Any) -> ReadFunction:
    """The reader of an operator that is the canonical `kind`, whose places, counts and sizes are int64."""

    def read(r: Reading) -> None:
        emit(r, kind, [r.int64(index) if KINDS[kind].role(index) == "index" else r.input(index) for index in range(len(r.inputs))],
             **attributes)  # fmt: skip

    return read


def make_indexed_writer(builtin: str, *, wide: bool = False) -> WriteFunction:
    """The writer of a kind that is the operator `builtin`, whose places, counts and sizes are int32, or int64 too if it is `wide`."""

    def write(op: Op, w: Writing) -> None:
        places = KINDS[op.kind].positions(op, "index")
        w.emit(builtin, [w.index(op, index, wide=wide) if index in places else name for index, name in enumerate(op.inputs)], op.outputs)

    return write


def make_writer(builtin: str, **fields: str) -> WriteFunction:
    """The writer of a kind that is the operator `builtin`; `fields` are those of its options by the attributes that they are."""
    return partial(_write, builtin, fields)


def _write(builtin: str, fields: Mapping[str, str], op: Op, w: Writing) -> None:
    w.emit(builtin, op.inputs, op.outputs, **{field: op[name] for field, name in fields.items()})


_PAIRS = [(integers, *pair.split(":")) for integers, pairs in _OPERATORS.items() for pair in pairs.split()]
READERS: Readers = {builtin: make_reader(kind, integers) for integers, builtin, kind in _PAIRS}
WRITERS: Writers = {kind: make_writer(builtin) for _, builtin, kind in _PAIRS}
