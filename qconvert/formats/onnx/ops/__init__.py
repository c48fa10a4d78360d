"""ONNX operators by family.

Each module has two tables: WRITERS, canonical kind -> write function; READERS, ONNX operator, such as "Conv" or
"com.microsoft.Attention" -> read function. Some have a third: OPSETS, canonical kind -> the opset that the nodes of an operator need, where
that may be newer than the lowest that is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qconvert.formats.onnx import opaque
from qconvert.formats.onnx.builder import Writers
from qconvert.formats.onnx.ops import (
    activation_norm,
    control,
    conv,
    elementwise,
    gather,
    integer_lstm,
    matrix,
    pool,
    quantize,
    recurrent,
    reduce,
    same_named,
    shape,
    space,
    svdf,
)
from qconvert.formats.onnx.reading import Readers
from qconvert.graph import Graph, Op

__all__ = ["OPSETS", "READERS", "WRITERS"]

_FAMILIES = (
    same_named,
    conv,
    matrix,
    pool,
    elementwise,
    activation_norm,
    reduce,
    shape,
    gather,
    space,
    quantize,
    recurrent,
    control,
    integer_lstm,
    svdf,
)

WRITERS: Writers = {
    **{kind: write for family in _FAMILIES for kind, write in family.WRITERS.items()},
    **opaque.WRITERS,
}

READERS: Readers = {name: read for family in _FAMILIES for name, read in getattr(family, "READERS", {}).items()}

OPSETS: Mapping[str, Callable[[Graph, Op], int]] = {
    kind: opset for family in _FAMILIES for kind, opset in getattr(family, "OPSETS", {}).items()
}
