"""What adds a few of TFLite's operators for one: for what depends on TFLite's own types and kernels. Other kinds that TFLite lacks are
lowered by the formulas of operators/formulas/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import REALS
from qconvert.formats.tflite.writing import Writing
from qconvert.graph import Op, Shape, numpy_dtype

__all__ = ["Composition"]

#: Option tables of the operators that are used here; others have none.
_TABLES = {
    "ABS": "AbsOptions",
    "ADD": "AddOptions",
    "ATAN2": "ATan2Options",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "COS": "CosOptions",
    "DIV": "DivOptions",
    "EQUAL": "EqualOptions",
    "EXP": "ExpOptions",
    "FLOOR_MOD": "FloorModOptions",
    "GELU": "GeluOptions",
    "GATHER": "GatherOptions",
    "GREATER": "GreaterOptions",
    "GREATER_EQUAL": "GreaterEqualOptions",
    "LESS": "LessOptions",
    "LESS_EQUAL": "LessEqualOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MEAN": "ReducerOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "MUL": "MulOptions",
    "NEG": "NegOptions",
    "NOT_EQUAL": "NotEqualOptions",
    "RANGE": "RangeOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "RESHAPE": "ReshapeOptions",
    "SELECT_V2": "SelectV2Options",
    "SHAPE": "ShapeOptions",
    "SIGN": "SignOptions",
    "SQUARE": "SquareOptions",
    "SQUARED_DIFFERENCE": "SquaredDifferenceOptions",
    "SUB": "SubOptions",
    "SUM": "ReducerOptions",
    "SCATTER_ND": "ScatterNdOptions",
    "TRANSPOSE": "TransposeOptions",
}


class Composition:
    """The TFLite operators that compute one canonical operator; each call adds one and gives its result's name."""

    def __init__(self, op: Op, w: Writing) -> None:
        self.op, self.w = op, w
        self.result = op.outputs[0]
        for name in (*op.inputs, *op.outputs):
            if name and w.tensor(name).is_quantized:
                raise w.unsupported(op, f"quantized {name!r}, which TFLite composes of several operators,", rule="quantized-data")

    @property
    def data(self) -> str:
        """The first input."""
        return self.op.inputs[0]

    def __call__(self, builtin: str, *operands: str | float, shape: Shape | None = None, dtype: str = "", **fields: Any) -> str:
        """An operator on tensors and numbers; its result is like the first operand unless shape or dtype say otherwise."""
        names = self._names(operands)
        first = self.w.tensor(names[0])
        wanted = first.shape if shape is None else shape
        result = self.w.add(f"{self.result}/{builtin.lower()}", dtype or first.dtype, wanted)
        self.w.emit(builtin, names, [result], _TABLES.get(builtin, ""), **fields)
        return result

    def _names(self, operands: Sequence[str | float]) -> list[str]:
        """The operands, numbers as constants; these are float32, and so must be what they meet."""
        types = {self.w.tensor(operand).dtype for operand in operands if isinstance(operand, str)} - {"float32", "bool"}
        if types and not all(isinstance(operand, str) for operand in operands):
            raise self.w.unsupported(self.op, f"data of {min(types)}, which TFLite composes of several operators,", rule="operand-types")
        return [operand if isinstance(operand, str) else self.number(operand) for operand in operands]

    @property
    def dtype(self) -> str:
        """The type of the first input."""
        return self.w.tensor(self.data).dtype

    @property
    def shape(self) -> Shape | None:
        """The shape of the first input."""
        return self.w.tensor(self.data).shape

    def number(self, value: float) -> str:
        """A constant without axes, of the type of the data if they are real."""
        dtype = self.w.tensor(self.data).dtype
        return self.w.const(np.array(value).astype(numpy_dtype(dtype if dtype in REALS else "float32")), f"{self.result}/constant")

    def end(self, builtin: str, *operands: str | float, **fields: Any) -> None:
        """The last operator, which gives the result."""
        names = self._names(operands)
        self.w.emit(builtin, names, [self.result], _TABLES.get(builtin, ""), **fields)

    def reduced(self, axes: list[int]) -> Shape:
        """The shape of the data with size 1 along `axes`."""
        return tuple(1 if axis in axes else size for axis, size in enumerate(self.w.tensor(self.data).shape or ()))
