"""ONNX operators by family. Each module ends with its table: canonical kind -> the function that writes it."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.onnx.builder import WriteFunction
from qconvert.formats.onnx.ops import (
    activation,
    conv,
    detection,
    elementwise,
    gather,
    matrix,
    pool,
    quantize,
    reduce,
    shape,
    space,
)

__all__ = ["WRITERS"]

_FAMILIES = (conv, matrix, pool, elementwise, activation, reduce, shape, gather, space, quantize, detection)

WRITERS: Mapping[str, WriteFunction] = {kind: write for family in _FAMILIES for kind, write in family.WRITERS.items()}
