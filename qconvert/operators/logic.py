"""Comparisons, functions of truth values, and choices by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.operators.attributes import (
    broadcast_shape,
    same_shape,
)
from qconvert.operators.call import (
    Call,
    compare_fold,
    has_one_quantization,
    is_per_tensor,
    logic_fold,
    on_values,
)
from qconvert.operators.kind import Kind
from qconvert.operators.properties import ELEMENTWISE, within_data


def where(call: Call) -> Array:
    """Where of ONNX."""
    return np.where(call.raw(0), call.values(1), call.values(2))


def _where_fold(call: Call) -> Any:
    if not has_one_quantization(call, 1) or not is_per_tensor(call) or call.raw(0).dtype != np.bool_:
        return None
    return np.where(call.raw(0), call.raw(1), call.raw(2))


def _compare(name: str, function: Callable[[Array, Array], Any]) -> Kind:
    return Kind(name, "data data", shape=broadcast_shape, rule="index", evaluate=on_values(function), fold=compare_fold(function),
                layout=ELEMENTWISE, compares=True, types="T T -> bool")  # fmt: skip


def _logic(name: str, function: Callable[[Array, Array], Any]) -> Kind:
    return Kind(name, "data data", shape=broadcast_shape, rule="plain", evaluate=on_values(function), fold=logic_fold(function),
                layout=ELEMENTWISE, types="bool bool -> bool")  # fmt: skip


def _test(name: str, function: Callable[[Array], Any]) -> Kind:
    """A question to each element."""
    return Kind(name, shape=same_shape, rule="index", evaluate=on_values(function), layout=ELEMENTWISE,
                types="any -> bool")  # fmt: skip


KINDS = (
    _compare("Equal", np.equal),
    _compare("NotEqual", np.not_equal),
    _compare("Greater", np.greater),
    _compare("GreaterOrEqual", np.greater_equal),
    _compare("Less", np.less),
    _compare("LessOrEqual", np.less_equal),
    _logic("And", np.logical_and),
    _logic("Or", np.logical_or),
    _logic("Xor", np.logical_xor),
    Kind(
        "Not",
        shape=same_shape,
        rule="plain",
        evaluate=on_values(np.logical_not),
        fold=logic_fold(np.logical_not),
        layout=ELEMENTWISE,
        types="bool -> bool",
    ),
    _test("IsNaN", np.isnan),
    _test("IsInf", np.isinf),
    Kind(
        "Where",
        "index data data",
        bounds=within_data,
        shape=broadcast_shape,
        evaluate=where,
        fold=_where_fold,
        layout=ELEMENTWISE,
        chooses=True,
        types="bool any any -> any",
    ),
)
