"""AVERAGE_POOL_2D and MAX_POOL_2D."""

from __future__ import annotations

from qconvert.formats.tflite.ops.window import window
from qconvert.formats.tflite.reading import ReadFunction, Reading

__all__ = ["READERS"]


def read_average_pool_2d(op: Reading) -> None:
    """AVERAGE_POOL_2D: padding is not counted. The uint8 kernel rounds x.5 up, the int8 one away from the stored zero."""
    ties = {"uint8": "up", "int8": "away", "int16": "away"}.get(op.tensor().dtype, "even")
    _read_pool(op, "AveragePool", ties=ties)


def read_max_pool_2d(op: Reading) -> None:
    """MAX_POOL_2D."""
    _read_pool(op, "MaxPool")


def _read_pool(op: Reading, kind: str, **more: str) -> None:
    kernel = (op.option("FilterHeight"), op.option("FilterWidth"))
    op.emit(kind, kernel_shape=kernel, activation=op.activation(), **more, **window(op, kernel))


READERS: dict[str, ReadFunction] = {
    "AVERAGE_POOL_2D": read_average_pool_2d,
    "MAX_POOL_2D": read_max_pool_2d,
}
