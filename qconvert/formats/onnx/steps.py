"""Shorthand for the nodes that spell out one operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder
from qconvert.graph import Array, Op

__all__ = ["Steps"]

#: Types of which onnxruntime's CPU provider has a Where (1.31, measured).
_CHOSEN = ("float16", "float32", "float64", "int32", "int64", "uint8", "string")

#: Elements of a constant that says where values go.
_LARGEST = 2**24


class Steps:
    """Nodes around one operator, named after its first output."""

    def __init__(self, op: Op, b: Builder) -> None:
        self.op, self.b, self.name = op, b, op.outputs[0]

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output; returns its name."""
        return self.b.node(kind, inputs, hint=f"{self.name}/{kind}", **attributes)[0]

    def end(self, kind: str, *inputs: str, output: int = 0, **attributes: Any) -> None:
        """The node that gives an output of the operator."""
        self.b.node(kind, list(inputs), [self.op.outputs[output]], **attributes)

    def cast(self, value: str, dtype: str) -> str:
        """The value as another type."""
        return self.node("Cast", value, to=ELEMENT_TYPES[dtype])

    def end_cast(self, value: str, dtype: str, output: int = 0) -> None:
        """The value as another type, as an output of the operator."""
        self.end("Cast", value, to=ELEMENT_TYPES[dtype], output=output)

    def choose(self, condition: str, a: str, b: str, dtype: str) -> None:
        """The operator's output: `a` where the condition is true, else `b`; types without a Where go through one that holds them."""
        if dtype in _CHOSEN:
            self.end("Where", condition, a, b)
            return
        wide = "float32" if "float" in dtype else "int64" if dtype in ("uint32", "uint64") else "int32"
        self.end_cast(self.node("Where", condition, self.cast(a, wide), self.cast(b, wide)), dtype)

    def const(self, data: Array, hint: str = "constant") -> str:
        """An initializer."""
        return self.b.const(data, f"{self.name}/{hint}")

    def require_small(self, sizes: Sequence[int]) -> None:
        """Raises UnsupportedError if a constant of so many elements would be too large for what it is good for."""
        if math.prod(sizes) > _LARGEST:
            raise self.b.unsupported(self.op, f"{' x '.join(map(str, sizes))} places, more than {_LARGEST},", rule="too-many-places")

    def ints(self, *values: int) -> str:
        """A list of int64."""
        return self.b.const(np.array(values, np.int64), f"{self.name}/ints")

    def scalar(self, value: int) -> str:
        """One int64."""
        return self.b.const(np.int64(value), f"{self.name}/scalar")

    def number(self, value: float) -> str:
        """One float32."""
        return self.b.const(np.float32(value), f"{self.name}/number")

    def number_1d(self, value: float) -> str:
        """A list of one float32."""
        return self.b.const(np.array([value], np.float32), f"{self.name}/threshold")

    def slice(self, value: str, start: int, end: int, axis: int) -> str:
        """A part along an axis."""
        return self.node("Slice", value, self.ints(start), self.ints(end), self.ints(axis))

    def column(self, value: str, index: int, axis: int) -> str:
        """One index of an axis, which goes away."""
        return self.node("Gather", value, self.scalar(index), axis=axis)
