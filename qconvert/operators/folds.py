"""Folds: what operators on constants give where every runtime gives the same bits; None where that is not sure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array, canonical_dtype, numpy_dtype
from qconvert.operators.call import Call, Fold

__all__ = [
    "FLOATS",
    "compare_fold",
    "extreme_fold",
    "floor_fold",
    "has_numbers",
    "has_one_quantization",
    "is_per_tensor",
    "is_plain",
    "is_undefined",
    "logic_fold",
    "movement_fold",
    "numeric_fold",
    "reduction_fold",
]

FLOATS = ("float16", "float32", "float64")


def is_plain(call: Call) -> bool:
    return not any(tensor is not None and tensor.is_quantized for tensor in (*call.tensors, *call.results))


def has_one_quantization(call: Call, first: int = 0, count: int | None = None) -> bool:
    """Whether stored values can stand for the real ones: all data inputs and outputs have equal types and quantizations."""
    sides = [tensor for tensor in (*call.tensors[first:count], *call.results) if tensor is not None]
    return all(side.dtype == sides[0].dtype and side.quantization == sides[0].quantization for side in sides)


def is_per_tensor(call: Call) -> bool:
    return all(tensor is None or tensor.quantization is None or tensor.quantization.is_per_tensor for tensor in call.tensors)


def movement_fold(function: Callable[[Call], Any]) -> Fold:
    """Stored values change place; what gives them other scales is not foldable here."""

    def run(call: Call) -> Any:
        if any(t is not None and t.quantization is not None and t.quantization.axis is not None for t in call.tensors):
            return None  # the axis changes too: validation knows how, and the operator stays
        return function(call)

    return run


def has_numbers(call: Call, floats: bool) -> bool:
    """Whether all inputs are plain numbers of one type: integers, or, if `floats`, IEEE floats too."""
    dtypes = {canonical_dtype(value.dtype) for value in call.stored if value is not None}
    if len(dtypes) != 1 or not is_plain(call) or call.op.attributes.get("activation"):
        return False
    (dtype,) = dtypes
    return (dtype in FLOATS and floats) or np.dtype(numpy_dtype(dtype)).kind in "iu"


def numeric_fold(function: Callable[..., Any], floats: bool = True) -> Fold:
    """An operator on plain numbers of one type that gives the same type."""

    def run(call: Call) -> Any:
        return function(*(value for value in call.stored if value is not None)) if has_numbers(call, floats) else None

    return run


def floor_fold(function: Callable[..., Any]) -> Fold:
    return numeric_fold(lambda a, b: None if is_undefined(a, b) else function(a, b), floats=False)


def is_undefined(a: Array, b: Array) -> bool:
    """A division by zero, or of the smallest integer by -1."""
    return bool((b == 0).any()) or (a.dtype.kind == "i" and bool((a == np.iinfo(a.dtype).min).any() and (b == -1).any()))


def extreme_fold(function: Callable[..., Any]) -> Fold:
    """Max or Min; runtimes differ on NaN and on which zero of 0 and -0 they give."""

    def run(*values: Array) -> Any:
        if values[0].dtype.kind == "f" and any(np.isnan(v).any() or (np.signbit(v) & (v == 0)).any() for v in values):
            return None
        return functools.reduce(function, values)

    return numeric_fold(run)


def compare_fold(function: Callable[..., Any]) -> Fold:
    def run(call: Call) -> Any:
        same = call.raw(0).dtype == call.raw(1).dtype
        return function(call.raw(0), call.raw(1)) if same and is_plain(call) and call.raw(0).dtype.kind in "biuf" else None

    return run


def logic_fold(function: Callable[..., Any]) -> Fold:
    def run(call: Call) -> Any:
        return function(*call.stored) if all(value is not None and value.dtype == np.bool_ for value in call.stored) else None

    return run


def reduction_fold(function: Any) -> Fold:
    """A reduction of integers, which no order of adding changes. No axes mean all."""

    def run(call: Call) -> Any:
        if not is_plain(call) or call.raw().dtype.kind not in "iu":
            return None
        return function(call.raw(), axis=tuple(call.ints(1)) or None, keepdims=bool(call["keepdims"])).astype(call.raw().dtype)

    return run
