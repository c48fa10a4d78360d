"""Reductions over axes."""

from __future__ import annotations

from qconvert.formats.tflite.reading import ReadFunction, Reading

__all__ = ["READERS"]


def _reduction(kind: str) -> ReadFunction:
    """The reader of a reduction over the axes in input 1; axes may be negative or a scalar."""

    def read(op: Reading) -> None:
        rank = op.rank()
        axes = op.shape_const(sorted({op.axis(axis, rank) for axis in op.ints(1)}), "axes")
        op.emit(kind, [op.input(0), axes], keepdims=int(op.option("KeepDims", False)))

    return read


READERS: dict[str, ReadFunction] = {
    "MEAN": _reduction("ReduceMean"),
}
