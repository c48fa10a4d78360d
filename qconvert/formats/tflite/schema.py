"""The TFLite schema as data, and its names: Model, Tensor … as views on a file (root()), ModelT, TensorT … as objects that are written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

from qconvert.formats.flatbuffers import Schema
from qconvert.formats.tflite.schema_table import BUILTIN_OPERATORS, TABLES, UNIONS
from qconvert.graph import Array

#: Data of buffers start at multiples of 16 bytes (schema.fbs: `force_align`).
TFLITE = Schema(TABLES, UNIONS, "Model", {("Buffer", "data"): 16}, b"TFL3")
BUILTIN_OPERATOR_NAMES = tuple(BUILTIN_OPERATORS.split())
#: The fused activations of the graph by their numbers in ActivationFunctionType, which has more.
FUSED_ACTIVATIONS = ("", "relu", "relu_n1_to_1", "relu6")
root = TFLITE.root
#: Options have the name of their operator, but for these; "" is that of none.
_OPTIONS = {
    **dict.fromkeys("MEAN SUM REDUCE_PROD REDUCE_MAX REDUCE_MIN REDUCE_ANY REDUCE_ALL".split(), "ReducerOptions"),
    **dict.fromkeys("AVERAGE_POOL_2D MAX_POOL_2D L2_POOL_2D".split(), "Pool2DOptions"),
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), "MaximumMinimumOptions"),
    **dict.fromkeys(("READ_VARIABLE", "ASSIGN_VARIABLE"), ""),
    "L2_NORMALIZATION": "L2NormOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
}
_TABLES = {table.lower(): table for table in TABLES}


def decode_text(text: bytes | None) -> str:
    """A text of a file, whatever its bytes are; "" for one that is left out."""
    return (text or b"").decode("utf-8", "replace")


def numbers_of(vector: Array | None) -> list[int]:
    """The numbers of a vector; none for one that is left out."""
    return [] if vector is None else vector.tolist()


def builtin_number(code: Any) -> int:
    """The builtin operator of an operator code: files older than 2020 have it in the 8-bit field, newer ones in both (schema.fbs)."""
    return int(max(code.builtinCode, code.deprecatedBuiltinCode))


def options_of(builtin: str, fields: Mapping[str, Any]) -> Any:
    """The object of an operator's options with these fields; None for an operator that has no table of them."""
    table = _OPTIONS.get(builtin, _TABLES.get(f"{builtin.replace('_', '')}options".lower(), ""))
    if fields and not table:
        raise AttributeError(f"{builtin} has no options, such as {min(fields)}")
    return TFLITE.object(table)(**fields) if table else None


def __getattr__(name: str) -> Any:
    """ModelT, TensorT … are the classes of objects, BuiltinOptions … and BuiltinOperator the numbers of a name."""
    if name.endswith("T") and name[:-1] in TABLES:
        return TFLITE.object(name[:-1])
    if name == "BuiltinOperator":
        return _numbers(BUILTIN_OPERATOR_NAMES)
    if name in UNIONS:
        return _numbers(("NONE", *UNIONS[name].split()))
    raise AttributeError(f"the TFLite schema has no {name}")


@cache
def _numbers(names: tuple[str, ...]) -> SimpleNamespace:
    return SimpleNamespace(**{name: number for number, name in enumerate(names)})
