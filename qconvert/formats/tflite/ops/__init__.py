"""TFLite operators by family. Each module ends with its table: operator name -> the function that reads it."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.tflite.ops import activation, conv, elementwise, matrix, pool, quantize, reduce, shape
from qconvert.formats.tflite.reading import ReadFunction

__all__ = ["READERS"]

READERS: Mapping[str, ReadFunction] = {
    name: function
    for module in (conv, matrix, pool, elementwise, activation, reduce, shape, quantize)
    for name, function in module.READERS.items()
}
