"""Arithmetic on one tensor and on pairs of tensors, with broadcasting."""

from __future__ import annotations

from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op

__all__ = ["READERS", "WRITERS"]


def _plain(kind: str) -> ReadFunction:
    """The reader of an operator that is the canonical `kind`, without attributes."""

    def read(op: Reading) -> None:
        op.emit(kind)

    return read


def _activated(kind: str) -> ReadFunction:
    """The reader of an operator that is the canonical `kind` with a fused activation."""

    def read(op: Reading) -> None:
        op.emit(kind, activation=op.activation())

    return read


def write_add(op: Op, w: Writing) -> None:
    """Add. Sums of int16 use the kernel without power-of-two scales."""
    w.emit("ADD", op.inputs, op.outputs, "AddOptions", fusedActivationFunction=w.activation(op), potScaleInt16=False)


def read_select(op: Reading) -> None:
    """SELECT: a condition of rank 1 chooses whole rows of the first axis; otherwise shapes are equal."""
    condition, data = op.tensor(0), op.tensor(1)
    if condition.rank != 1 or data.rank in (None, 0, 1) or condition.shape is None:
        op.emit("Where")
        return
    assert data.rank is not None
    shape = op.shape_const([-1, *[1] * (data.rank - 1)], "condition_shape")
    rows = op.intermediate("condition", "bool", (*condition.shape, *[1] * (data.rank - 1)))
    op.emit("Reshape", [condition.name, shape], [rows])
    op.emit("Where", [rows, *op.inputs[1:]])


def read_cast(op: Reading) -> None:
    """CAST: stored numbers change type, whatever their quantization."""
    op.emit("Cast", to=op.result().dtype)


READERS: dict[str, ReadFunction] = {
    **{name: _activated(kind) for name, kind in (("ADD", "Add"), ("SUB", "Sub"), ("MUL", "Mul"), ("DIV", "Div"))},
    "MAXIMUM": _plain("Max"),
    "MINIMUM": _plain("Min"),
    "FLOOR_DIV": _plain("FloorDiv"),
    "FLOOR_MOD": _plain("FloorMod"),
    "POW": _plain("Pow"),
    "SQUARED_DIFFERENCE": _plain("SquaredDifference"),
    "ABS": _plain("Abs"),
    "NEG": _plain("Neg"),
    "EXP": _plain("Exp"),
    "LOG": _plain("Log"),
    "SQRT": _plain("Sqrt"),
    "RSQRT": _plain("Rsqrt"),
    "SQUARE": _plain("Square"),
    "SIN": _plain("Sin"),
    "COS": _plain("Cos"),
    "ROUND": _plain("Round"),
    "FLOOR": _plain("Floor"),
    "CEIL": _plain("Ceil"),
    "SIGN": _plain("Sign"),
    "EQUAL": _plain("Equal"),
    "NOT_EQUAL": _plain("NotEqual"),
    "GREATER": _plain("Greater"),
    "GREATER_EQUAL": _plain("GreaterOrEqual"),
    "LESS": _plain("Less"),
    "LESS_EQUAL": _plain("LessOrEqual"),
    "LOGICAL_AND": _plain("And"),
    "LOGICAL_OR": _plain("Or"),
    "LOGICAL_NOT": _plain("Not"),
    "SELECT": read_select,
    "SELECT_V2": _plain("Where"),
    "CAST": read_cast,
}

WRITERS: dict[str, WriteFunction] = {"Add": write_add}
