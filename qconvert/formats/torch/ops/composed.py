"""Operators that are several of the graph's: distances, diagonals, products over axes, what replaces values that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import as_real, cast_operand, emit_reshape, operands, size_of
from qconvert.formats.torch.ops.reduce import emit_reduction, read_norm
from qconvert.formats.torch.reading import Operator, Reading
from qconvert.formats.torch.values import Ref
from qconvert.graph import Array, numpy_dtype

__all__ = ["OPERATORS"]


def _require_unquantized(c: Reading, *arguments: str) -> None:
    if any(isinstance(c[argument], Ref) and c.operand(argument).is_quantized for argument in arguments):
        raise c.unsupported_error("quantized data", rule="quantized-data")


def read_without_nan(c: Reading) -> Ref:
    """aten::nan_to_num(x, nan, posinf, neginf)."""
    name = c.name("self")
    if not c.is_real(name) or c.operand("self").is_quantized:
        return Ref(name)
    dtype = c.lookup(name).dtype
    largest = float(np.finfo(numpy_dtype(dtype)).max)
    zero = c.real_constant(c.get("nan", 0.0), name, "nan")
    found = c.emit("Where", [c.emit("IsNaN", [name], dtype="bool", quantization=None, hint="is_nan").name, zero, name], hint="numbers").name
    for key, bound in (("posinf", math.inf), ("neginf", -math.inf)):
        value = c.real_constant(c.get(key, math.copysign(largest, bound)), name, key)
        is_it = c.emit(
            "Equal", [found, c.real_constant(bound, name, f"{key}_bound")], dtype="bool", quantization=None, hint=f"is_{key}"
        ).name
        found = c.emit("Where", [is_it, value, found], hint="" if key == "neginf" else "finite").name
    return Ref(found)


def read_log_sum(c: Reading) -> Ref:
    """aten::logaddexp: the larger, and log(1 + exp(-|a - b|))."""
    _require_unquantized(c, "self", "other")
    names, _ = operands(c, "self", "other", real=True)
    apart = c.emit("Abs", [c.emit("Sub", names, hint="difference").name], hint="distance").name
    softly = c.emit("Exp", [c.emit("Neg", [apart], hint="turned").name], hint="exp").name
    more = c.emit("Log", [c.emit("Add", [softly, c.real_constant(1.0, softly, "one")], hint="sum").name], hint="more").name
    return c.emit("Add", [c.emit("Max", names, hint="larger").name, more])


def read_hypotenuse(c: Reading) -> Ref:
    """aten::hypot: the root of both squares."""
    _require_unquantized(c, "self", "other")
    names, _ = operands(c, "self", "other", real=True)
    squares = [c.emit("Square", [name], hint=f"square{index}").name for index, name in enumerate(names)]
    return c.emit("Sqrt", [c.emit("Add", squares, hint="sum").name])


def read_logit(c: Reading) -> Ref:
    """aten::logit(x, eps): log(x / (1 - x)), of x that is eps away from 0 and 1 at least."""
    _require_unquantized(c, "self")
    name = as_real(c, "self")
    if c["eps"] is not None:
        bounds = [c.real_constant(value, name, hint) for value, hint in ((c.number("eps"), "low"), (1 - c.number("eps"), "high"))]
        name = c.emit("Clip", [name, *bounds], hint="bounded").name
    rest = c.emit("Sub", [c.real_constant(1.0, name, "one"), name], hint="rest").name
    return c.emit("Log", [c.emit("Div", [name, rest], hint="odds").name])


def read_distances(c: Reading) -> Ref:
    """aten::cdist(x1, x2, p): the distance of each row of one to each of the other."""
    _require_unquantized(c, "x1", "x2")
    names, _ = operands(c, "x1", "x2", real=True)
    power = c.number("p")
    if power not in (1.0, 2.0):
        raise c.unsupported_error(f"p = {power}", rule="form-not-covered")
    ranks = c.rank("x1"), c.rank("x2")
    first = c.emit("Unsqueeze", [names[0], c.list64([ranks[0] - 1], "rows")], hint="rows_of").name
    second = c.emit("Unsqueeze", [names[1], c.list64([ranks[1] - 2], "columns")], hint="columns_of").name
    apart = c.emit("Sub", [first, second], hint="difference").name
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
    rank, offset = c.rank("self"), c.integer("offset")
    first, second = c.axis(c.integer("dim1"), rank), c.axis(c.integer("dim2"), rank)
    shape = c.operand("self").shape or ()
    rows, columns = shape[first], shape[second]
    if not isinstance(rows, int) or not isinstance(columns, int) or first == second:
        raise c.unknown_shape("self")
    order = (*(axis for axis in range(rank) if axis not in (first, second)), first, second)
    rest = [size_of(c, c.name("self"), axis) for axis in order[:-2]]
    name = c.emit("Transpose", [c.name("self")], perm=order, hint="last").name if order != tuple(range(rank)) else c.name("self")
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    c.take(8 * count)
    places = (np.arange(count, dtype=np.int64) + max(-offset, 0)) * columns + np.arange(count) + max(offset, 0)
    return _Diagonal(emit_reshape(c, name, [*rest, rows * columns], hint="flat_").name, order, (rows, columns), rest, places)


def read_diagonal(c: Reading) -> Ref:
    """aten::diagonal(x, offset, dim1, dim2): both axes come last, as one, of which each element of the diagonal is taken."""
    found = _diagonal(c)
    return c.emit("Gather", [found.flat, c.const(found.places, "places")], axis=len(found.rest))


def read_diagonal_scatter(c: Reading) -> Ref:
    """aten::diagonal_scatter(x, src, offset, dim1, dim2): the diagonal replaced."""
    found = _diagonal(c)
    size = found.sizes[0] * found.sizes[1]
    c.take(8 * size)
    places = np.arange(size, dtype=np.int64)
    places[found.places] = size + np.arange(len(found.places))
    source = cast_operand(c, c["src"], c.operand("self").dtype, "source")
    both = c.emit("Concat", [found.flat, source], hint="both", axis=len(found.rest))
    whole = c.emit("Gather", [both.name, c.const(places, "places")], axis=len(found.rest), hint="whole")
    order = found.order
    turned = order != tuple(range(len(order)))
    result = emit_reshape(c, whole.name, [*found.rest, *found.sizes], hint="matrix_" if turned else "")
    return c.emit("Transpose", [result.name], perm=tuple(order.index(axis) for axis in range(len(order)))) if turned else result


def read_trace(c: Reading) -> Ref:
    """aten::trace: the sum of the diagonal of a matrix."""
    _require_unquantized(c, "self")
    shape = c.static_shape("self")
    if len(shape) != 2:
        raise c.invalid(f"the shape is {shape}; the operator requires a matrix", rule="wrong-rank")
    name = c.name("self") if c.is_real(c.name("self")) else cast_operand(c, Ref(c.name("self")), "int64", "whole")
    c.take(8 * shape[0] * shape[1])
    eye = c.const(np.eye(*shape, dtype=numpy_dtype(c.lookup(name).dtype)), "diagonal")
    masked = c.emit("Mul", [name, eye], hint="masked").name
    return c.emit("ReduceSum", [masked, c.list64([0, 1], "axes")], keepdims=0)


def read_count(c: Reading) -> Ref:
    """aten::count_nonzero(x, dim): how many elements are not 0."""
    _require_unquantized(c, "self")
    yes = cast_operand(c, Ref(c.name("self")), "bool", "is_there")
    return emit_reduction(c, "ReduceSum", cast_operand(c, Ref(yes), "int64", "ones"))


def read_tensor_product(c: Reading) -> Ref:
    """aten::tensordot(a, b, dims_self, dims_other): sums of products over these axes, all at once, as one product of matrices."""
    (first, second), _ = operands(c, "self", "other")
    sides = []
    for name, key in ((first, "dims_self"), (second, "dims_other")):
        rank = c.lookup(name).rank or 0
        axes = [c.axis(axis, rank) for axis in c.integers(key)]
        rest = [axis for axis in range(rank) if axis not in axes]
        sides.append((name, axes, rest, [size_of(c, name, axis) for axis in rest]))
    (left, summed, kept, rows), (right, others, following, columns) = sides
    a = c.emit("Transpose", [left], perm=(*kept, *summed), hint="left").name
    b = c.emit("Transpose", [right], perm=(*others, *following), hint="right").name
    count = math.prod(c.whole(size_of(c, left, axis), "dims_self") for axis in summed)
    product = c.emit(
        "MatMul", [emit_reshape(c, a, [-1, count], hint="a_").name, emit_reshape(c, b, [count, -1], hint="b_").name], hint="product"
    )
    return emit_reshape(c, product.name, [*rows, *columns])


def read_meshgrid(c: Reading) -> list[Ref]:
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
        upright = emit_reshape(c, name, shape, hint=f"upright{index}_").name
        found.append(c.emit("Expand", [upright, c.list64([c.whole(size, "tensors") for size in whole], f"shape{index}")], hint=f"{index}"))
    return found


def read_linear_norm(c: Reading) -> Ref:
    """aten::linalg_norm(x, ord, dim, keepdim): of vectors; of matrices the root of all squares."""
    dim, order = c.get("dim"), c.get("ord")
    axes = len(dim) if isinstance(dim, (list, tuple)) else 1 if dim is not None else c.rank("self") if order is not None else 1
    if order is not None and axes != 1:
        raise c.unsupported_error(f"the order {order} of a matrix", rule="form-not-covered")
    return read_norm(c)


OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::nan_to_num": Operator("T self, f? nan=None, f? posinf=None, f? neginf=None", read_without_nan),
    "aten::logaddexp": Operator("T self, T other", read_log_sum),
    "aten::hypot": Operator("T self, T other", read_hypotenuse),
    **{f"aten::{name}": Operator("T self, f? eps=None", read_logit) for name in ("logit", "special_logit")},
    "aten::cdist": Operator("T x1, T x2, f p=2., i? compute_mode=None", read_distances),
    "aten::_cdist_forward": Operator("T x1, T x2, f p, i? compute_mode", read_distances),
    "aten::diagonal": Operator("T self, i offset=0, i dim1=0, i dim2=1", read_diagonal),
    "aten::diagonal_scatter": Operator("T self, T src, i offset=0, i dim1=0, i dim2=1", read_diagonal_scatter),
    "aten::trace": Operator("T self", read_trace),
    "aten::count_nonzero": [Operator("T self, i? dim=None", read_count), Operator("T self, l dim", read_count)],
    "aten::tensordot": Operator("T self, T other, l dims_self, l dims_other", read_tensor_product),
    "aten::meshgrid": Operator("t tensors, *, s indexing='ij'", read_meshgrid),
    "aten::linalg_norm": Operator("T self, f? ord=None, l? dim=None, b keepdim=False, *, i? dtype=None", read_linear_norm),
}
