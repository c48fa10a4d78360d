"""Arithmetic on pairs of tensors, with broadcasting."""

from __future__ import annotations

from qconvert.formats.tflite.reading import ReadFunction, Reading

__all__ = ["READERS"]


def _binary(kind: str) -> ReadFunction:
    """The reader of an operator that is the canonical `kind` with a fused activation."""

    def read(op: Reading) -> None:
        op.emit(kind, activation=op.activation())

    return read


READERS: dict[str, ReadFunction] = {
    "ADD": _binary("Add"),
    "SUB": _binary("Sub"),
    "MUL": _binary("Mul"),
    "DIV": _binary("Div"),
}
