"""Tensors made of numbers: shapes, ranges, codes, triangles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array, numpy_dtype
from qconvert.graph.schema import Op
from qconvert.operators.attributes import flag, has, integer
from qconvert.operators.call import Call, has_numbers
from qconvert.operators.kind import Kind
from qconvert.operators.properties import MIXES, WHEREVER, Demand, Number, Operands, before_last
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, failure, stated_axis


def _shape_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.shape(0)
    return [(UNKNOWN,) if data is None else (len(data),)]


def _require_counts(op: Op, s: ShapeContext, counts: Sequence[int]) -> None:
    """Each input has so many elements, or any number for -1, as far as its shape says."""
    for index, count in enumerate(counts):
        sizes = s.shape(index)
        numbers = [size for size in sizes or () if isinstance(size, int)]
        if count >= 0 and sizes is not None and len(numbers) == len(sizes) and math.prod(numbers) != count:
            raise failure(op, f"input {index} of shape {sizes} is not {count} number{'s' if count > 1 else ''}", rule="not-a-scalar")


def _range_shape(op: Op, s: ShapeContext) -> Shapes:
    """max(ceil((limit - start) / delta), 0) elements (ONNX Range, opset 11)."""
    values = [s.constant(i) for i in range(3)]
    if any(value is not None and (value.size != 1 or value.dtype.kind not in "iuf") for value in values):
        raise failure(op, "start, limit and delta are not one number each", rule="not-a-scalar")
    _require_counts(op, s, (1, 1, 1))
    start, limit, delta = (None if value is None else value.flat[0].item() for value in values)
    if delta == 0:
        raise failure(op, "a range with steps of 0 does not end", rule="endless-range")
    if start is None or limit is None or delta is None:
        return [(UNKNOWN,)]
    if not all(np.isfinite(value) for value in (start, limit, delta)):
        raise failure(op, f"a range from {start} to {limit} by {delta} does not end", rule="endless-range")
    if all(isinstance(value, int) for value in (start, limit, delta)):
        return [(max(-((start - limit) // delta), 0),)]
    return [(max(math.ceil((limit - start) / delta), 0),)]


def _one_hot_shape(op: Op, s: ShapeContext) -> Shapes:
    _require_counts(op, s, (-1, 1, 2))
    (depth,) = s.sizes(1, 1)
    if isinstance(depth, int) and depth < 0:
        raise failure(op, f"the depth is {depth}, below 0", rule="negative-size")
    indices = s.known_shape(0)
    axis = stated_axis(op, len(indices) + 1)
    return [(*indices[:axis], depth, *indices[axis:])]


def one_hot(call: Call) -> Array:
    """OneHot: (indices, depth, [off, on]); with `wraps`, as in ONNX, negative indices count from the end, else they are off."""
    indices, values = call.raw(0).astype(np.int64), call.raw(2)
    (depth,) = call.ints(1)
    indices = np.where(indices < 0, indices + depth, indices) if call["wraps"] else indices
    axis = call["axis"] % (indices.ndim + 1)
    codes = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    return np.asarray(values[(np.expand_dims(indices, axis) == codes).astype(np.int64)])


def range_(call: Call) -> Array:
    """Range of ONNX: from start, in steps of delta, below limit."""
    start, limit, delta = (call.values(i).reshape(()) for i in range(3))
    count = max(math.ceil((limit - start) / delta), 0)
    return np.asarray(start + np.arange(count) * delta)


def _range_fold(call: Call) -> Any:
    """start, start + delta …: integers, and floats that are whole and below 2**24, where adding and multiplying agree."""
    if not has_numbers(call, True) or any(value is None or value.size != 1 for value in call.stored):
        return None
    start, _, delta = (call.raw(i).flat[0] for i in range(3))
    values = range_(call)
    assert isinstance(values, np.ndarray)
    if start.dtype.kind == "f":
        ends = (start, delta, *values[-1:])
        if start.dtype == np.float16 or any(end != np.rint(end) or abs(end) > 2**24 for end in ends):
            return None
    return values.astype(start.dtype)


def _trilu_shape(op: Op, s: ShapeContext) -> Shapes:
    shape = s.shape(0)
    if shape is not None and len(shape) < 2:
        raise failure(op, f"data of shape {shape} are not matrices", rule="wrong-rank")
    return [shape]


def trilu(call: Call) -> Array:
    """Trilu of ONNX: the upper or lower triangle of matrices, from the k-th diagonal on."""
    (k,) = call.ints(1) if call.has(1) else [0]
    return np.triu(call.raw(), k) if call["upper"] else np.tril(call.raw(), k)


def shape_of(call: Call) -> Array:
    """Shape of ONNX."""
    return np.array(call.raw().shape, numpy_dtype(call.results[0].dtype))


def _broadcast_args_shape(op: Op, s: ShapeContext) -> Shapes:
    first, second = s.shape(0), s.shape(1)
    if first is None or second is None or isinstance(first[0], str) or isinstance(second[0], str):
        return [(UNKNOWN,)]
    return [(max(first[0], second[0]),)]


def broadcast_args(call: Call) -> Array:
    """The shape to which two shapes broadcast."""
    return np.array(np.broadcast_shapes(call.ints(0), call.ints(1)), call.raw().dtype)


#: The largest depth of a OneHot that is computed at run time.
_DEPTH = 8


def _below_depth(operands: Operands, number: Number) -> Iterator[Demand]:
    depth = operands.constant(1)
    if depth is None:  # which may be an input that a whole tensor is made of
        yield 1, 1, _DEPTH
        yield 0, 0, _DEPTH - 1
    elif depth.size == 1:
        yield 0, 0, int(depth.flat[0]) - 1


KINDS = (
    Kind(
        "Rank",
        samples=MIXES,
        reads_shape=True,
        shape=lambda op, s: [()],
        rule="index",
        evaluate=lambda call: np.array(call.raw().ndim),
        types="any -> index",
    ),
    Kind(
        "BroadcastArgs", "index index", samples=MIXES, shape=_broadcast_args_shape, rule="plain", evaluate=broadcast_args, types="T T -> T"
    ),
    Kind(
        "ZerosLike",
        samples=WHEREVER,
        reads_shape=True,
        shape=lambda op, s: [s.shape(0)],
        rule="plain",
        evaluate=lambda call: np.zeros_like(call.raw()),
        fold=lambda call: np.zeros_like(call.raw()),
        types="T -> T",
    ),
    Kind(
        "Shape",
        samples=MIXES,
        reads_shape=True,
        lists_sizes=True,
        shape=_shape_shape,
        rule="index",
        evaluate=shape_of,
        types="any -> index",
    ),
    Kind("Range", "data data data", samples=MIXES, shape=_range_shape, rule="plain", evaluate=range_, fold=_range_fold, types="T T T -> T"),
    Kind(
        "OneHot",
        "data index data",
        samples=WHEREVER,
        domain=_below_depth,
        shape=_one_hot_shape,
        rule="plain",
        evaluate=one_hot,
        types="any any T -> T",
        attributes=has(axis=integer(-1), wraps=flag(0)),
    ),
    Kind(
        "Trilu",
        "data index?",
        samples=before_last(2),
        shape=_trilu_shape,
        rule="plain",
        evaluate=trilu,
        types="T any -> T",
        attributes=has(upper=flag(1)),
    ),
)
