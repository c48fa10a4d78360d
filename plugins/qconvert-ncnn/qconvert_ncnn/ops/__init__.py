"""Operators, each written by one function next to the one that reads its layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qconvert.plugin import Op
from qconvert_ncnn.ops import elementwise, normalize, pool, products, shape
from qconvert_ncnn.reading import Reading
from qconvert_ncnn.writing import Writing

__all__ = ["READERS", "WRITERS"]

_PARTS = (elementwise, normalize, pool, products, shape)
#: Type of a layer -> the function that reads it.
READERS: dict[str, Callable[[Reading], Any]] = {name: function for part in _PARTS for name, function in part.READERS.items()}
#: Canonical kind -> the function that writes it.
WRITERS: dict[str, Callable[[Op, Writing], Any]] = {name: function for part in _PARTS for name, function in part.WRITERS.items()}
