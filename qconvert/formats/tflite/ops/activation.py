"""Activation functions and normalizations along an axis."""

from __future__ import annotations

from qconvert.formats.tflite.reading import ReadFunction, Reading

__all__ = ["READERS"]


def read_logistic(op: Reading) -> None:
    """LOGISTIC."""
    op.emit("Sigmoid")


def read_softmax(op: Reading) -> None:
    """SOFTMAX over the last axis, of beta times its input."""
    op.emit("Softmax", axis=-1, beta=float(op.option("Beta", 1.0)))


READERS: dict[str, ReadFunction] = {
    "LOGISTIC": read_logistic,
    "SOFTMAX": read_softmax,
}
