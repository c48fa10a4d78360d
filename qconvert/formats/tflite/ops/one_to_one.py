"""Operators that are a canonical kind as they stand, with the same operands and without attributes: one row says both directions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op


def _read_real(kind: str, r: Reading) -> None:
    """A function of real numbers means nothing on integers without a scale: its kernel divides by that."""
    r.require_scales()
    r.emit(kind)


def _read_numbers(kind: str, r: Reading) -> None:
    """Kernels of int8 and int16 take stored integers for plain numbers, and wrap their results around."""
    if r.tensor().dtype in ("int8", "int16"):
        r.emit_plain(kind)
    else:
        r.emit(kind)


#: What integers are to a kernel -> how its operator is read: values on their scales if they have some, real ones that need scales, stored
#: integers that it compares or moves whatever their scales, or plain numbers, of all types or of narrow ones alone.
_READ: dict[str, Callable[[str, Reading], Any]] = {
    "values": lambda kind, r: r.emit(kind),
    "real": _read_real,
    "stored": lambda kind, r: r.emit_stored(kind),
    "plain": lambda kind, r: r.emit_plain(kind),
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


def make_reader(kind: str, integers: str = "values") -> ReadFunction:
    """The reader of an operator that is the canonical `kind`; `integers` says what they are to its kernel."""
    return partial(_READ[integers], kind)


def make_writer(builtin: str) -> WriteFunction:
    """The writer of a kind that is the operator `builtin`, without options."""
    return partial(_write, builtin)


def _write(builtin: str, op: Op, w: Writing) -> None:
    w.emit(builtin, op.inputs, op.outputs)


_PAIRS = [(integers, *pair.split(":")) for integers, pairs in _OPERATORS.items() for pair in pairs.split()]
READERS: dict[str, ReadFunction] = {builtin: make_reader(kind, integers) for integers, builtin, kind in _PAIRS}
WRITERS: dict[str, WriteFunction] = {kind: make_writer(builtin) for _, builtin, kind in _PAIRS}
