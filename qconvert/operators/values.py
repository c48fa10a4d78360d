"""Operators as functions of values: what formulas are written with.

`apply("Softplus", x)` is the one primitive: it takes any kind of the operator set. On numpy arrays it computes, by the evaluation of the
kind's object; on other values, such as the symbols of rewriting/lowering.py, it asks these what to do. So a formula is ordinary Python:

    def swish(x, alpha):
        return x * sigmoid(x * alpha)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from qconvert.arithmetic.storage import Array, canonical_dtype, numpy_dtype
from qconvert.graph.schema import Op, Tensor
from qconvert.operators.call import Call, ExactResult

#: Elements of the largest constant that a formula makes: masks, and places of rows.
LARGEST_CONSTANT = 2**24
#: The end of a Slice that goes to the end of an axis.
FAR = 2**62

#: What formulas take and give: an array, a number, or an object of a class below Values.
Value = Any


_Own = TypeVar("_Own", bound="Values")


def _method(kind: str, *, is_reversed: bool = False) -> Callable[[_Own, Value], _Own]:
    """A method for one of Python's operators with two operands."""

    def method(self: _Own, other: Value) -> _Own:
        found: _Own = apply(kind, *((other, self) if is_reversed else (self, other)))
        return found

    return method


class Values:
    """Values that are no arrays, with Python's operators. A class below says what apply() does with them."""

    __array_ufunc__ = None  # numpy's arrays leave mixed operations to these methods

    @property
    def shape(self) -> tuple[int | str, ...] | None:
        """See shape_of()."""
        raise NotImplementedError

    @property
    def dtype(self) -> str:
        """See dtype_of()."""
        raise NotImplementedError

    @property
    def constant(self) -> Array | None:
        """See constant_of()."""
        raise NotImplementedError

    __add__, __radd__ = _method("Add"), _method("Add", is_reversed=True)
    __sub__, __rsub__ = _method("Sub"), _method("Sub", is_reversed=True)
    __mul__, __rmul__ = _method("Mul"), _method("Mul", is_reversed=True)
    __truediv__, __rtruediv__ = _method("Div"), _method("Div", is_reversed=True)
    __matmul__ = _method("MatMul")

    def __neg__(self) -> Value:
        return apply("Neg", self)

    def apply(self, kind: str, operands: Sequence[Value], attributes: Mapping[str, Any], outputs: int) -> Any:
        """Return what an operator makes of operands, of which this is one; a list where `outputs` is more than 1."""
        raise NotImplementedError


def apply(kind: str, *operands: Value, outputs: int = 1, **attributes: Any) -> Any:
    """Return what an operator of a kind makes of values.

    Args:
        kind: of the operator.
        operands: its inputs: arrays, numbers, other values; None for an optional one that is absent.
        outputs: how many results it has; a list is returned for more than 1.
        attributes: of the operator; others have their defaults.
    """
    for item in operands:
        if isinstance(item, Values):
            return item.apply(kind, operands, attributes, outputs)
    return _evaluate_kind(kind, operands, attributes, outputs)


def compute(op: Op, *operands: Array) -> Array:
    """Return what the evaluation of an operator gives for arrays in the place of its inputs."""
    found: Array = _evaluate_kind(op.kind, operands, op.attributes, 1)
    return found


def _evaluate_kind(kind: str, operands: Sequence[Value], attributes: Mapping[str, Any], outputs: int) -> Any:
    """Return what the evaluation of a kind gives for arrays."""
    from qconvert.operators import KINDS

    arrays = tuple(None if item is None else np.asarray(item) for item in operands)
    tensors = tuple(
        None if item is None else Tensor(f"operand_{place}", canonical_dtype(item.dtype), item.shape) for place, item in enumerate(arrays)
    )
    names = tuple("" if tensor is None else tensor.name for tensor in tensors)
    dtype = next((canonical_dtype(item.dtype) for item in arrays if item is not None), "float64")
    results = tuple(Tensor(f"result_{place}", dtype, None) for place in range(outputs))
    evaluate = KINDS[kind].evaluate
    if evaluate is None:
        raise TypeError(f"{kind} means something within a graph alone")
    with np.errstate(all="ignore"):
        found = evaluate(Call(Op(kind, names, tuple(item.name for item in results), attributes), arrays, tensors, results))
    listed = [_array(item) for item in (found if isinstance(found, list) else [found])]
    return listed if outputs > 1 else listed[0]


def _array(item: Array | ExactResult) -> Array:
    if isinstance(item, ExactResult):
        return item.stored if item.real is None else item.real
    return np.asarray(item)


def shape_of(value: Value) -> tuple[int | str, ...] | None:
    """The shape of a value; None if not even its rank is known. A dynamic size is a string."""
    return value.shape if isinstance(value, Values) else tuple(np.shape(value))


def static_shape_of(value: Value) -> tuple[int, ...] | None:
    """The shape of a value whose sizes are all numbers, else None."""
    sizes = [size for size in shape_of(value) or ("",) if isinstance(size, int)]
    return tuple(sizes) if len(sizes) == rank_of(value) else None


def rank_of(value: Value) -> int | None:
    """The rank of a value; None if it is not known."""
    shape = shape_of(value)
    return None if shape is None else len(shape)


def dtype_of(value: Value) -> str:
    """The type of the numbers of a value; quantized ones are float32."""
    return value.dtype if isinstance(value, Values) else canonical_dtype(np.asarray(value).dtype)


def constant_of(value: Value) -> Array | None:
    """The numbers of a constant; None of what is computed at run time, or stored as integers on scales."""
    return value.constant if isinstance(value, Values) else np.asarray(value)


exp, log, sqrt, square, tanh, sigmoid, erf = (partial(apply, kind) for kind in ("Exp", "Log", "Sqrt", "Square", "Tanh", "Sigmoid", "Erf"))
absolute, sign, relu, maximum, minimum = (partial(apply, kind) for kind in ("Abs", "Sign", "Relu", "Max", "Min"))
clip, where = partial(apply, "Clip"), partial(apply, "Where")


def reduce(kind: str, x: Value, axes: Sequence[int], *, keepdims: bool = True) -> Value:
    """Return a reduction such as "ReduceSum" along axes."""
    return apply(kind, x, np.array(axes, np.int64), keepdims=int(keepdims))


def reshape(x: Value, sizes: Sequence[int]) -> Value:
    """Return a value in another shape; one size may be -1."""
    return apply("Reshape", x, np.array(sizes, np.int64))


def transpose(x: Value, axes: Sequence[int]) -> Value:
    """Return a value with its axes in another order; the value itself if that is the order they have."""
    return x if tuple(axes) == tuple(range(len(axes))) else apply("Transpose", x, perm=tuple(axes))


def cast(x: Value, dtype: str) -> Value:
    """Return a value as another type: of a constant another constant; the value itself if it has the type."""
    if dtype_of(x) == dtype:
        return x
    known = constant_of(x)
    return apply("Cast", x, to=dtype) if known is None else known.astype(numpy_dtype(dtype))


def slice_along(x: Value, start: int, end: int | None, axis: int) -> Value:
    """Return a part of a value along an axis."""
    return apply("Slice", x, *(np.array([number], np.int64) for number in (start, FAR if end is None else end, axis)))


def clip_indices(x: Value, last: Value) -> Value:
    """Return indices of int64, those below 0 as 0, those above `last` as that."""
    known, most = constant_of(x), constant_of(last)
    if known is not None and most is not None:
        return np.clip(known, 0, most)
    return maximum(minimum(x, last), 0)
