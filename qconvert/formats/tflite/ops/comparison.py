"""Comparisons. LiteRT's kernels of bytes compare 256 times the float values, rounded to integers (comparisons.cc)."""

from __future__ import annotations

from functools import partial

import numpy as np

from qconvert.arithmetic import dequantize_float32, tflite_comparison_tables
from qconvert.formats.tflite.ops.one_to_one import make_writer
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction
from qconvert.graph import Array, Tensor, integer_range

_BYTES = ("int8", "uint8")


def _read_comparison(kind: str, r: Reading) -> None:
    """A comparison; orders of int16 are of stored integers, and EQUAL has no such kernel."""
    first, second = r.tensor(0), r.tensor(1)
    if first.dtype == "int16" and kind not in ("Equal", "NotEqual"):
        r.emit_stored(kind)
        return
    if kind == "NotEqual":
        r.require_scales("int16")
    tables = _comparison_tables(first, second)
    if not tables:
        r.emit(kind)
        return
    r.require_sound(r.inputs)
    r.emit(kind, [_look_up_operand(r, index, table) for index, table in enumerate(tables)])


def _comparison_tables(first: Tensor, second: Tensor) -> list[Array]:
    """The numbers that the kernel compares, for each of the 256 values of either operand; none where the operator is one in float.

    Such operands have values, those of a constant alone, whose order the kernel keeps, or a result that C does not define (then
    checking/expected_values.py reports the source).
    """
    if first.dtype != second.dtype or first.dtype not in _BYTES or first.per_tensor is None or second.per_tensor is None:
        return []
    low, high = integer_range(first.dtype)
    found, compared, exact = list[Array](), list[Array](), list[Array]()
    for tensor, quantization in ((first, first.per_tensor), (second, second.per_tensor)):
        tables = tflite_comparison_tables(quantization, tensor.dtype)
        if len(tables) > 1:
            return []
        stored = np.arange(low, high + 1) if tensor.data is None else np.unique(tensor.data).astype(np.int64)
        found += tables
        compared.append(tables[0][stored - low].astype(np.float64))
        exact.append(dequantize_float32(stored, quantization))
    order, expected = (np.sign(np.subtract.outer(*values)) for values in (compared, exact))
    return [] if np.array_equal(order, expected) else found


def _look_up_operand(r: Reading, index: int, table: Array) -> str:
    """An operand looked up in its table."""
    name = r.input(index)
    tensor = r.lookup(name)
    low, _ = integer_range(tensor.dtype)
    place = r.intermediate("place", "int64", tensor.shape, base=name)
    r.emit("Cast", [r.reinterpret(name, None)], [place], to="int64")
    if low:
        moved = r.intermediate("place_from_zero", "int64", tensor.shape, base=name)
        r.emit("Add", [place, r.const(np.int64(-low), "lowest")], [moved])
        place = moved
    found = r.intermediate("steps", "int32", tensor.shape, base=name)
    return r.emit("Gather", [r.const(table, "table"), place], [found], axis=0)[0]


_NAMES = {"EQUAL": "Equal", "NOT_EQUAL": "NotEqual", "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual", "LESS": "Less",
          "LESS_EQUAL": "LessOrEqual"}  # fmt: skip

READERS: dict[str, ReadFunction] = {name: partial(_read_comparison, kind) for name, kind in _NAMES.items()}

WRITERS: dict[str, WriteFunction] = {kind: make_writer(name) for name, kind in _NAMES.items()}
