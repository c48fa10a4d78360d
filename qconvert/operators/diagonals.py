"""Diagonals, and gaps between elements."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op
from qconvert.operators.attributes import has, integers
from qconvert.operators.call import Call
from qconvert.operators.kind import Kind
from qconvert.operators.properties import WHEREVER, before_last
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, Size, failure


def _matrix_diag_shape(op: Op, s: ShapeContext) -> Shapes:
    shape = s.shape(0)
    if shape is not None and not shape:
        raise failure(op, "a scalar is not a diagonal", rule="wrong-rank")
    return [None if shape is None else (*shape, shape[-1])]


def matrix_diag(call: Call) -> Array:
    """Matrices of zeros with the data on their diagonals."""
    data = call.raw()
    return np.asarray(np.where(np.eye(data.shape[-1], dtype=bool), data[..., None], np.zeros((), data.dtype)))


def _set_diag_shape(op: Op, s: ShapeContext) -> Shapes:
    shape, diagonal = s.shape(0), s.shape(1)
    if shape is not None and len(shape) < 2:
        raise failure(op, f"data of shape {shape} are not matrices", rule="wrong-rank")
    if shape is not None and diagonal is not None and all(isinstance(size, int) for size in (*shape, *diagonal)):
        if tuple(diagonal) != (*shape[:-2], min(int(size) for size in shape[-2:])):
            raise failure(op, f"a diagonal of shape {diagonal} for matrices of shape {shape}", rule="shape-mismatch")
    return [shape]


def matrix_set_diag(call: Call) -> Array:
    """The matrices with other diagonals."""
    result, diagonal = call.raw().copy(), call.raw(1)
    places = np.arange(min(result.shape[-2:]))
    result[..., places, places] = diagonal
    return result


def _interior_shape(op: Op, s: ShapeContext) -> Shapes:
    shape = s.shape(0)
    if shape is None:
        return [None]
    lists = [op[name] for name in ("low", "high", "interior")]
    if any(len(values) != len(shape) for values in lists) or min(op["interior"], default=0) < 0:
        raise failure(op, f"gaps {lists} do not fit data of shape {shape}", rule="shape-mismatch")
    result: list[Size] = []
    for size, low, high, gap in zip(shape, *lists, strict=True):
        result.append(UNKNOWN if isinstance(size, str) else max(size + max(size - 1, 0) * gap + low + high, 0))
    return [tuple(result)]


def interior_pad(call: Call) -> Array:
    """(data, filler): `interior` fillers between neighbours of each axis, then `low` in front and `high` after; less than 0 cuts off."""
    data, filler = call.raw(), call.raw(1).reshape(())
    inner = [size + max(size - 1, 0) * gap for size, gap in zip(data.shape, call["interior"], strict=True)]
    result = np.full(inner, filler, data.dtype)
    result[tuple(slice(None, None, gap + 1) for gap in call["interior"])] = data
    result = np.pad(result, [(max(a, 0), max(b, 0)) for a, b in zip(call["low"], call["high"], strict=True)], constant_values=filler)
    cuts = zip(call["low"], call["high"], result.shape, strict=True)
    return np.asarray(result[tuple(slice(max(-a, 0), max(size + min(b, 0), 0)) for a, b, size in cuts)])


KINDS = (
    Kind("MatrixDiag", samples=before_last(1), shape=_matrix_diag_shape, rule="plain", evaluate=matrix_diag, types="T -> T"),
    Kind("MatrixSetDiag", "data data", samples=before_last(2), shape=_set_diag_shape, rule="move", evaluate=matrix_set_diag),
    Kind("InteriorPad", "data filler", samples=WHEREVER, shape=_interior_shape, rule="move", evaluate=interior_pad,
         attributes=has(low=integers(), high=integers(), interior=integers())),
)  # fmt: skip
