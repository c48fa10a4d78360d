"""ONNX operators by family. Each module ends with its table: canonical kind -> the function that writes it."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.onnx.builder import WriteFunction
from qconvert.formats.onnx.ops import activation, conv, elementwise, matrix, pool, quantize, reduce, shape

__all__ = ["WRITERS"]

WRITERS: Mapping[str, WriteFunction] = {
    kind: function
    for module in (conv, matrix, pool, elementwise, activation, reduce, shape, quantize)
    for kind, function in module.WRITERS.items()
}
