"""Comparisons, functions of truth values and of bits, and choices by truth values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array, numpy_dtype
from qconvert.graph.schema import Op
from qconvert.operators.attributes import broadcast_shape, choice, has, integer, same_shape, text
from qconvert.operators.call import Call, Function, compare_fold, has_one_quantization, is_per_tensor, logic_fold, on_values
from qconvert.operators.kind import Kind
from qconvert.operators.properties import ELEMENTWISE, WHEREVER, within_data
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, failure


def where(call: Call) -> Array:
    """Where of ONNX."""
    return np.where(call.raw(0), call.values(1), call.values(2))


def _where_fold(call: Call) -> Any:
    if not has_one_quantization(call, 1) or not is_per_tensor(call) or call.raw(0).dtype != np.bool_:
        return None
    return np.where(call.raw(0), call.raw(1), call.raw(2))


def _pairs(name: str, types: str, function: Callable[[Array, Array], Any], rule: str = "plain", evaluate: Function | None = None,
           **more: Any) -> Kind:  # fmt: skip
    """A function of two elements; of their values, unless it says otherwise."""
    return Kind(name, "data data", shape=broadcast_shape, rule=rule, evaluate=evaluate or on_values(function), layout=ELEMENTWISE,
                types=types, **more)  # fmt: skip


def _compare(name: str, function: Callable[[Array, Array], Any]) -> Kind:
    return _pairs(name, "T T -> bool", function, "index", fold=compare_fold(function), compares=True)


def _logic(name: str, function: Callable[[Array, Array], Any]) -> Kind:
    return _pairs(name, "bool bool -> bool", function, fold=logic_fold(function))


def _bitwise(name: str, function: Callable[[Array, Array], Any]) -> Kind:
    return _pairs(name, "T T -> T", function, evaluate=lambda call: np.asarray(function(call.raw(0), call.raw(1))))


def _test(name: str, function: Callable[[Array], Any]) -> Kind:
    """A question to each element."""
    return Kind(name, shape=same_shape, rule="index", evaluate=on_values(function), layout=ELEMENTWISE,
                types="any -> bool")  # fmt: skip


def bitwise_not(call: Call) -> Array:
    """BitwiseNot of ONNX: every bit turned."""
    return np.invert(call.raw())


def bit_shift(call: Call) -> Array:
    """BitShift of ONNX, of signed integers too: a shift to the right keeps the sign. By all bits or more, which ONNX leaves open, a shift
    to the left gives 0, and one to the right what all bits but one give.
    """
    data, by = call.raw(0), call.raw(1)
    inside = np.clip(by, 0, data.dtype.itemsize * 8 - 1).astype(data.dtype)
    if call["direction"] == "RIGHT":
        return np.asarray(np.right_shift(data, inside))
    return np.where(inside == by, np.left_shift(data, inside), 0).astype(data.dtype)


def _bitcast_shape(op: Op, s: ShapeContext) -> Shapes:
    """The same shape, with a last axis more, or less, where the types differ in size; only the tensors say the type of the data."""
    shape, ratio = s.shape(0), int(op["ratio"])
    if shape is None or ratio == 1:
        return [shape]
    if ratio > 0:
        return [(*shape, ratio)]
    if not shape or (isinstance(shape[-1], int) and shape[-1] != -ratio):
        raise failure(op, f"the last dimension of {shape} is not a whole number of {op['to']}", rule="sizes-do-not-divide")
    return [shape[:-1]] if shape[-1] != UNKNOWN else [None]


def bitcast(call: Call) -> Array:
    """The same bytes as numbers of another type."""
    data, wanted = np.ascontiguousarray(call.raw()), numpy_dtype(str(call["to"]))
    if data.dtype.itemsize == wanted.itemsize:
        return data.view(wanted)
    return data[..., None].view(wanted) if data.dtype.itemsize > wanted.itemsize else data.view(wanted)[..., 0]


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
        rounds_once=True,
    ),
    _bitwise("BitwiseAnd", np.bitwise_and),
    _bitwise("BitwiseOr", np.bitwise_or),
    _bitwise("BitwiseXor", np.bitwise_xor),
    Kind("BitwiseNot", shape=same_shape, rule="plain", evaluate=bitwise_not, layout=ELEMENTWISE, types="T -> T"),
    Kind("BitShift", "data data", shape=broadcast_shape, rule="plain", evaluate=bit_shift, layout=ELEMENTWISE, types="T T -> T",
         attributes=has(direction=choice(("LEFT", "RIGHT")))),
    Kind("Bitcast", samples=WHEREVER, shape=_bitcast_shape, rule="plain", evaluate=bitcast, types="any -> @to",
         attributes=has(to=text(), ratio=integer(1))),
)  # fmt: skip
