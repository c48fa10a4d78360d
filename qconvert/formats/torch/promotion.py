"""Storage types of results, as PyTorch finds them for operands of several types: tensors before tensors of rank 0 before numbers.

Source: c10/core/ScalarType.cpp (promoteTypes), ATen/native/TypeProperties.cpp (result_type).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import REALS
from qconvert.formats.torch.reading import Call
from qconvert.formats.torch.values import Ref
from qconvert.graph import numpy_dtype

__all__ = ["as_real", "cast_operand", "common_type", "operands"]

_INTEGERS = ("int8", "int16", "int32", "int64")
_FLOATS = ("float16", "float32", "float64")


def operands(c: Call, *arguments: str, dtype: str = "", real: bool = False) -> tuple[list[str], str]:
    """Arguments of one elementwise operator, tensors or numbers, as tensors of one type.

    Args:
        c: the call.
        arguments: their names.
        dtype: the type, by default that which PyTorch promotes them to.
        real: whether the operator makes float32 of integers.

    Returns:
        Names of the tensors, and their type. A quantized tensor stays as it is, next to float32.
    """
    values = [c[argument] for argument in arguments]
    wanted = dtype or common_type(c, values)
    if real and wanted not in REALS:
        wanted = "float32"
    return [cast_operand(c, value, wanted, argument) for value, argument in zip(values, arguments, strict=True)], wanted


def as_real(c: Call, argument: str) -> str:
    """The name of a tensor, which is cast to float32 if it holds integers or truth values without a quantization."""
    return operands(c, argument, real=True)[0][0]


def cast_operand(c: Call, value: Any, dtype: str, hint: str) -> str:
    """The name of a tensor or number in a type."""
    if not isinstance(value, Ref):
        return c.const(np.asarray(value, numpy_dtype(dtype)), hint)
    tensor = c.lookup(c.plain(value.name))
    if tensor.dtype == dtype or tensor.is_quantized:
        return tensor.name
    if tensor.data is not None:
        return c.variant_of(tensor.name, dtype, tensor.data.astype(numpy_dtype(dtype)), None)
    return c.emit("Cast", [tensor.name], dtype=dtype, quantization=None, hint=f"{hint}/{dtype}", to=dtype).name


def common_type(c: Call, values: Sequence[Any]) -> str:
    """The type that PyTorch gives the result of an elementwise operator on tensors (Ref) and numbers."""
    groups: list[str] = ["", "", ""]  # tensors, those of rank 0, numbers
    for value in values:
        rank, dtype = _group_and_type(c, value)
        groups[rank] = _promote_types(groups[rank], dtype) if groups[rank] else dtype
    return _combine_types(groups[0], _combine_types(groups[1], groups[2])) or "float32"


def _group_and_type(c: Call, value: Any) -> tuple[int, str]:
    """Which group an operand is in, and its type."""
    if not isinstance(value, Ref):
        return 2, "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
    tensor = c.lookup(value.name)
    dtype = "float32" if (tensor.is_quantized and not c.is_plain) or tensor.dtype == "unknown" else tensor.dtype
    if tensor.shape == () and tensor.name.startswith("CONSTANTS.") and dtype in ("float64", "int64"):
        return 2, "float32" if dtype == "float64" else dtype  # how TorchScript writes numbers down
    return (2, dtype) if value.number else (int(tensor.shape == ()), dtype)


def _combine_types(first: str, second: str) -> str:
    """The type of operands of two groups: the second counts where it is of another category above the first's."""
    if not first or not second:
        return first or second
    return first if _category(second) <= _category(first) else _promote_types(first, second)


def _category(dtype: str) -> int:
    return 0 if dtype == "bool" else 3 if dtype.startswith("complex") else 2 if dtype in REALS or dtype.startswith("float") else 1


def _promote_types(first: str, second: str) -> str:
    """The type of two operands of one group."""
    if first == second:
        return first
    low, high = sorted((first, second), key=_category)
    if _category(low) < _category(high):
        return high
    if {first, second} == {"float16", "bfloat16"}:
        return "float32"
    if _category(first) == 2:
        return max((first, second), key=lambda dtype: _FLOATS.index(dtype) if dtype in _FLOATS else 0)
    if "uint8" in (first, second):
        first, second = (dtype.replace("uint8", "int16") for dtype in (first, second))
    return max((first, second), key=lambda dtype: _INTEGERS.index(dtype) if dtype in _INTEGERS else len(_INTEGERS))
