"""Readers and writers of operators, a file for each family: READERS by type of layer, WRITERS by canonical kind."""

from __future__ import annotations

from collections.abc import Callable

from qconvert.plugin import Op
from qconvert_openvino.ops import elementwise, normalize, pool, products, quantize, shape
from qconvert_openvino.reading import Reading
from qconvert_openvino.writing import Writing

__all__ = ["READERS", "WRITERS"]

_FAMILIES = (elementwise, normalize, pool, products, quantize, shape)

READERS: dict[str, Callable[[Reading], None]] = {name: read for family in _FAMILIES for name, read in family.READERS.items()}
WRITERS: dict[str, Callable[[Op, Writing], None]] = {name: write for family in _FAMILIES for name, write in family.WRITERS.items()}
