"""Operators that are several of the graph's: distances, diagonals, products over axes, what replaces values that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import as_real, cast_operand, emit_reshape, emit_transpose, operands, size_of
from qconvert.formats.torch.ops.reduce import emit_reduction, read_norm
from qconvert.formats.torch.reading import ReadFunction, Reading
from qconvert.graph import Array, numpy_dtype


def read_without_nan(c: Reading) -> str:
    """aten::nan_to_num(x, nan, posinf, neginf)."""
    name = c.name()
    if not c.is_real(name) or c.operand().is_quantized:
        return name
    dtype = c.lookup(name).dtype
    largest = float(np.finfo(numpy_dtype(dtype)).max)
    zero = c.real_constant(c.get("nan", 0.0), name, "nan")
    found = c.emit("Where", [c.emit("IsNaN", [name], hint="is_nan"), zero, name], hint="numbers")
    for key, bound in (("posinf", math.inf), ("neginf", -math.inf)):
        value = c.real_constant(c.get(key, math.copysign(largest, bound)), name, key)
        is_it = c.emit("Equal", [found, c.real_constant(bound, name, f"{key}_bound")], hint=f"is_{key}")
        found = c.emit("Where", [is_it, value, found], hint="" if key == "neginf" else "finite")
    return found


def read_log_sum(c: Reading) -> str:
    """aten::logaddexp: the larger, and log(1 + exp(-|a - b|))."""
    names, _ = operands(c, "self", "other", real=True)
    c.require_plain(*names)
    apart = c.emit("Abs", [c.emit("Sub", names, hint="difference")], hint="distance")
    softly = c.emit("Exp", [c.emit("Neg", [apart], hint="turned")], hint="exp")
    more = c.emit("Log", [c.emit("Add", [softly, c.real_constant(1.0, softly, "one")], hint="sum")], hint="more")
    return c.emit("Add", [c.emit("Max", names, hint="larger"), more])


def read_hypotenuse(c: Reading) -> str:
    """aten::hypot: the root of both squares."""
    names, _ = operands(c, "self", "other", real=True)
    c.require_plain(*names)
    squares = [c.emit("Square", [name], hint=f"square{index}") for index, name in enumerate(names)]
    return c.emit("Sqrt", [c.emit("Add", squares, hint="sum")])


def read_logit(c: Reading) -> str:
    """aten::logit(x, eps): log(x / (1 - x)), of x that is eps away from 0 and 1 at least."""
    name = as_real(c)
    c.require_plain(name)
    if c["eps"] is not None:
        bounds = [c.real_constant(value, name, hint) for value, hint in ((c.number("eps"), "low"), (1 - c.number("eps"), "high"))]
        name = c.emit("Clip", [name, *bounds], hint="bounded")
    rest = c.emit("Sub", [c.real_constant(1.0, name, "one"), name], hint="rest")
    return c.emit("Log", [c.emit("Div", [name, rest], hint="odds")])


def read_distances(c: Reading) -> str:
    """aten::cdist(x1, x2, p): the distance of each row of one to each of the other."""
    names, _ = operands(c, "x1", "x2", real=True)
    c.require_plain(*names)
    power = c.number("p")
    if power not in (1.0, 2.0):
        raise c.unsupported_error(f"p = {power}")
    ranks = c.rank("x1"), c.rank("x2")
    first = c.emit("Unsqueeze", [names[0], c.list64([ranks[0] - 1], "rows")], hint="rows_of")
    second = c.emit("Unsqueeze", [names[1], c.list64([ranks[1] - 2], "columns")], hint="columns_of")
    apart = c.emit("Sub", [first, second], hint="difference")
    return c.emit("ReduceL1" if power == 1 else "ReduceL2", [apart, c.list64([-1], "axis")], keepdims=0)


@dataclass(frozen=True, slots=True)
class _Diagonal:
    """A diagonal of two axes: the data with both as one at the end, and where its elements stand there."""

    flat: str
    order: tuple[int, ...]
    sizes: tuple[int, int]
    rest: list[Any]
    places: Array


def _diagonal(c: Reading) -> _Diagonal:
    rank, offset = c.rank(), c.integer("offset")
    first, second = c.axis(c.integer("dim1"), rank), c.axis(c.integer("dim2"), rank)
    shape = c.operand().shape or ()
    rows, columns = shape[first], shape[second]
    if not isinstance(rows, int) or not isinstance(columns, int) or first == second:
        raise c.unknown_shape()
    order = (*(axis for axis in range(rank) if axis not in (first, second)), first, second)
    rest = [size_of(c, c.name(), axis) for axis in order[:-2]]
    name = emit_transpose(c, c.name(), order, "last")
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    c.take(8 * count)
    places = (np.arange(count, dtype=np.int64) + max(-offset, 0)) * columns + np.arange(count) + max(offset, 0)
    return _Diagonal(emit_reshape(c, name, [*rest, rows * columns], hint="flat_"), order, (rows, columns), rest, places)


def read_diagonal(c: Reading) -> str:
    """aten::diagonal(x, offset, dim1, dim2): both axes come last, as one, of which each element of the diagonal is taken."""
    found = _diagonal(c)
    return c.emit("Gather", [found.flat, c.const(found.places, "places")], axis=len(found.rest))


def read_diagonal_scatter(c: Reading) -> str:
    """aten::diagonal_scatter(x, src, offset, dim1, dim2): the diagonal replaced."""
    found = _diagonal(c)
    size = found.sizes[0] * found.sizes[1]
    c.take(8 * size)
    places = np.arange(size, dtype=np.int64)
    places[found.places] = size + np.arange(len(found.places))
    source = cast_operand(c, c["src"], c.operand().dtype, "source")
    both = c.emit("Concat", [found.flat, source], hint="both", axis=len(found.rest))
    whole = c.emit("Gather", [both, c.const(places, "places")], axis=len(found.rest), hint="whole")
    back = np.argsort(found.order).tolist()
    result = emit_reshape(c, whole, [*found.rest, *found.sizes], hint="" if back == sorted(back) else "matrix_")
    return emit_transpose(c, result, back)


def read_trace(c: Reading) -> str:
    """aten::trace: the sum of the diagonal of a matrix."""
    c.require_plain(c.name())
    shape = c.static_shape()
    if len(shape) != 2:
        raise c.invalid(f"the shape is {shape}; the operator requires a matrix", rule="wrong-rank")
    name = c.name() if c.is_real(c.name()) else cast_operand(c, c.name(), "int64", "whole")
    c.take(8 * shape[0] * shape[1])
    eye = c.const(np.eye(*shape, dtype=numpy_dtype(c.lookup(name).dtype)), "diagonal")
    masked = c.emit("Mul", [name, eye], hint="masked")
    return c.emit("ReduceSum", [masked, c.list64([0, 1], "axes")], keepdims=0)


def read_count(c: Reading) -> str:
    """aten::count_nonzero(x, dim): how many elements are not 0."""
    c.require_plain(c.name())
    yes = cast_operand(c, c.name(), "bool", "is_there")
    return emit_reduction(c, "ReduceSum", cast_operand(c, yes, "int64", "ones"))


def read_tensor_product(c: Reading) -> str:
    """aten::tensordot(a, b, dims_self, dims_other): sums of products over these axes, all at once, as one product of matrices."""
    (first, second), _ = operands(c, "self", "other")
    sides = []
    for name, key in ((first, "dims_self"), (second, "dims_other")):
        rank = c.lookup(name).rank or 0
        axes = [c.axis(axis, rank) for axis in c.integers(key)]
        rest = [axis for axis in range(rank) if axis not in axes]
        sides.append((name, axes, rest, [size_of(c, name, axis) for axis in rest]))
    (left, summed, kept, rows), (right, others, following, columns) = sides
    a = c.emit("Transpose", [left], perm=(*kept, *summed), hint="left")
    b = c.emit("Transpose", [right], perm=(*others, *following), hint="right")
    count = math.prod(c.whole(size_of(c, left, axis), "dims_self") for axis in summed)
    product = c.emit("MatMul", [emit_reshape(c, a, [-1, count], hint="a_"), emit_reshape(c, b, [count, -1], hint="b_")], hint="product")
    return emit_reshape(c, product, [*rows, *columns])


def read_meshgrid(c: Reading) -> list[str]:
    """aten::meshgrid(tensors, indexing): each list along an axis of its own, repeated along the others."""
    names = c.names("tensors")
    swapped = c.get("indexing", "ij") == "xy" and len(names) > 1
    sizes: list[Any] = [size_of(c, name, 0) if c.lookup(name).rank else 1 for name in names]
    places = list(range(len(names)))
    if swapped:
        places[:2] = [1, 0]
    whole = [sizes[place] for place in places]
    found = []
    for index, name in enumerate(names):
        shape = [sizes[index] if place == index else 1 for place in places]
        upright = emit_reshape(c, name, shape, hint=f"upright{index}_")
        found.append(c.emit("Expand", [upright, c.list64([c.whole(size, "tensors") for size in whole], f"shape{index}")], hint=f"{index}"))
    return found


def read_linear_norm(c: Reading) -> str:
    """aten::linalg_norm(x, ord, dim, keepdim): of vectors; of matrices the root of all squares."""
    dim, order = c.get("dim"), c.get("ord")
    axes = len(dim) if isinstance(dim, (list, tuple)) else 1 if dim is not None else c.rank() if order is not None else 1
    if order is not None and axes != 1:
        raise c.unsupported_error(f"the order {order} of a matrix")
    return read_norm(c)


OPERATORS: Mapping[str, ReadFunction] = {
    "aten::nan_to_num(T self, f? nan=None, f? posinf=None, f? neginf=None)": read_without_nan,
    "aten::logaddexp(T self, T other)": read_log_sum,
    "aten::hypot(T self, T other)": read_hypotenuse,
    "aten::logit|special_logit(T self, f? eps=None)": read_logit,
    "aten::cdist(T x1, T x2, f p=2., i? compute_mode=None)": read_distances,
    "aten::_cdist_forward(T x1, T x2, f p, i? compute_mode)": read_distances,
    "aten::diagonal(T self, i offset=0, i dim1=0, i dim2=1)": read_diagonal,
    "aten::diagonal_scatter(T self, T src, i offset=0, i dim1=0, i dim2=1)": read_diagonal_scatter,
    "aten::trace(T self)": read_trace,
    "aten::count_nonzero(T self, i? dim=None)": read_count,
    "aten::count_nonzero(T self, l dim)": read_count,
    "aten::tensordot(T self, T other, l dims_self, l dims_other)": read_tensor_product,
    "aten::meshgrid(t tensors, *, s indexing='ij')": read_meshgrid,
    "aten::linalg_norm(T self, f? ord=None, l? dim=None, b keepdim=False, *, i? dtype=None)": read_linear_norm,
}
