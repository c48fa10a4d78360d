"""Reductions, running sums and searches along axes."""

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


def read_cumsum(op: Reading) -> None:
    """CUMSUM along the axis in input 1."""
    exclusive, reverse = int(op.option("Exclusive", False)), int(op.option("Reverse", False))
    op.emit("CumSum", [op.input(0)], axis=op.axis(op.ints(1)[0], op.rank()), exclusive=exclusive, reverse=reverse)


def _search(kind: str) -> ReadFunction:
    """The reader of ARG_MAX and ARG_MIN along the axis in input 1. The canonical operators give int64."""

    def read(op: Reading) -> None:
        axis, result = op.axis(op.ints(1)[0], op.rank()), op.result()
        if result.dtype == "int64":
            op.emit(kind, [op.input(0)], axis=axis, keepdims=0)
            return
        wide = op.intermediate("int64", "int64", result.shape)
        op.emit(kind, [op.input(0)], [wide], axis=axis, keepdims=0)
        op.emit("Cast", [wide], to=result.dtype)

    return read


READERS: dict[str, ReadFunction] = {
    "MEAN": _reduction("ReduceMean"),
    "SUM": _reduction("ReduceSum"),
    "REDUCE_MAX": _reduction("ReduceMax"),
    "REDUCE_MIN": _reduction("ReduceMin"),
    "REDUCE_PROD": _reduction("ReduceProd"),
    "REDUCE_ANY": _reduction("ReduceAny"),
    "REDUCE_ALL": _reduction("ReduceAll"),
    "CUMSUM": read_cumsum,
    "ARG_MAX": _search("ArgMax"),
    "ARG_MIN": _search("ArgMin"),
}
