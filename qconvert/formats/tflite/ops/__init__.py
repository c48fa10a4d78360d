"""TFLite operators by family. Each module ends with its table: operator name -> the function that reads it."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.tflite.ops import (
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
from qconvert.formats.tflite.reading import ReadFunction

__all__ = ["READERS"]

_FAMILIES = (conv, matrix, pool, elementwise, activation, reduce, shape, gather, space, quantize, detection)

READERS: Mapping[str, ReadFunction] = {name: read for family in _FAMILIES for name, read in family.READERS.items()}
