"""Shapes of elementwise operators, reductions, searches, matrix products and whole-tensor operators."""

from __future__ import annotations

import math

import numpy as np

from qconvert.graph import Op, Shape
from qconvert.graph.shapes.context import (
    UNKNOWN,
    Result,
    Rule,
    ShapeContext,
    Size,
    broadcast,
    failure,
    normalized,
    unified,
)

__all__ = ["RULES"]


def _broadcasting(op: Op, s: ShapeContext) -> Result:
    return [broadcast(op, [s.shape(i) for i in range(len(op.inputs))])]


def _same(op: Op, s: ShapeContext) -> Result:
    shape = s.shape(0)
    if shape is not None and "axis" in op.attributes:
        normalized(op, [int(op["axis"])], len(shape))
    return [shape]


def _without(op: Op, data: Shape, axes: list[int]) -> Shape:
    """`data` reduced along `axes`, which stay with size 1 if the operator keeps dimensions."""
    if op["keepdims"]:
        return tuple(1 if axis in axes else size for axis, size in enumerate(data))
    return tuple(size for axis, size in enumerate(data) if axis not in axes)


def _reduce(op: Op, s: ShapeContext) -> Result:
    """No axes at all means all of them, as in ONNX with noop_with_empty_axes = 0."""
    data, axes = s.shape(0), s.ints(1)
    if data is None:
        return [None]
    if s.has(1) and axes is None:
        return [(UNKNOWN,) * len(data) if op["keepdims"] else None]
    return [_without(op, data, normalized(op, axes or range(len(data)), len(data)))]


def _arg(op: Op, s: ShapeContext) -> Result:
    data = s.shape(0)
    if data is None:
        return [None]
    axes = normalized(op, [int(op["axis"])], len(data))
    if data[axes[0]] == 0:
        raise failure(op, f"nothing to search along axis {axes[0]} of shape {data}")
    return [_without(op, data, axes)]


def _gemm(op: Op, s: ShapeContext) -> Result:
    data, weights = s.shape(0), s.shape(1)
    for shape in (data, weights):
        if shape is not None and len(shape) != 2:
            raise failure(op, f"an operand of shape {shape} is no matrix")
    if data is not None and weights is not None:
        unified(op, [data[1], weights[1]], "the depths of data and weights (O,I)")
    result: Shape = (UNKNOWN if data is None else data[0], UNKNOWN if weights is None else weights[0])
    if s.has(2) and (bias := s.shape(2)) is not None:
        full = broadcast(op, [bias, result])
        if full is None or len(full) != 2 or any(isinstance(r, int) and f != r for f, r in zip(full, result, strict=True)):
            raise failure(op, f"a bias of shape {bias} does not broadcast to {result}")
    return [result]


def _matmul(op: Op, s: ShapeContext) -> Result:
    a, b = s.shape(0), s.shape(1)
    if a is None or b is None:
        return [None]
    if len(a) < 2 or len(b) < 2:
        raise failure(op, f"operands of shape {a} and {b} are no matrices")
    rows, depth = (a[-1], a[-2]) if op.attributes.get("trans_a") else (a[-2], a[-1])
    other, columns = (b[-1], b[-2]) if op.attributes.get("trans_b") else (b[-2], b[-1])
    unified(op, [depth, other], f"the depths of operands of shape {a} and {b}")
    batch = broadcast(op, [a[:-2], b[:-2]])
    return [None if batch is None else (*batch, rows, columns)]


def _topk(op: Op, s: ShapeContext) -> Result:
    data, k = s.shape(0), s.ints(1)
    if data is None:
        return [None, None]
    (axis,) = normalized(op, [int(op["axis"])], len(data))
    if k is not None and len(k) != 1:
        raise failure(op, f"k is {k}, not one number")
    count: Size = UNKNOWN if k is None else k[0]
    size = data[axis]
    if isinstance(count, int) and (count < 0 or (isinstance(size, int) and count > size)):
        raise failure(op, f"the {count} largest of {size} elements")
    shape = (*data[:axis], count, *data[axis + 1 :])
    return [shape, shape]


def _one_hot(op: Op, s: ShapeContext) -> Result:
    indices, depth = s.shape(0), s.ints(1)
    if indices is None:
        return [None]
    (axis,) = normalized(op, [int(op["axis"])], len(indices) + 1)
    if depth is not None and (len(depth) != 1 or depth[0] < 0):
        raise failure(op, f"the depth is {depth}, not one number of at least 0")
    return [(*indices[:axis], UNKNOWN if depth is None else depth[0], *indices[axis:])]


def _non_zero(op: Op, s: ShapeContext) -> Result:
    data = s.shape(0)
    return [None if data is None else (len(data), UNKNOWN)]


def _shape(op: Op, s: ShapeContext) -> Result:
    data = s.shape(0)
    return [(UNKNOWN,) if data is None else (len(data),)]


def _range(op: Op, s: ShapeContext) -> Result:
    """max(ceil((limit - start) / delta), 0) elements (ONNX Range, opset 11)."""
    values = [s.constant(i) for i in range(3)]
    if any(value is not None and (value.size != 1 or value.dtype.kind not in "iuf") for value in values):
        raise failure(op, "start, limit and delta are not one number each")
    start, limit, delta = (None if value is None else value.reshape(-1)[0].item() for value in values)
    if delta == 0:
        raise failure(op, "a range with steps of 0 does not end")
    if start is None or limit is None or delta is None:
        return [(UNKNOWN,)]
    if not all(np.isfinite(value) for value in (start, limit, delta)):
        raise failure(op, f"a range from {start} to {limit} by {delta} does not end")
    if all(isinstance(value, int) for value in (start, limit, delta)):
        return [(max(-((start - limit) // delta), 0),)]
    return [(max(math.ceil((limit - start) / delta), 0),)]


def _detection(op: Op, s: ShapeContext) -> Result:
    """Boxes, classes, scores, count; TFLite's kernel has a row for each class of each detection, in regular suppression too."""
    rows = int(op["max_detections"]) * int(op["max_classes_per_detection"])
    if rows < 0:
        raise failure(op, f"{rows} detections")
    boxes, scores, anchors = (s.shape(i) for i in range(3))
    for what, shape, rank in (("boxes", boxes, 3), ("scores", scores, 3), ("anchors", anchors, 2)):
        if shape is not None and len(shape) != rank:
            raise failure(op, f"{what} of shape {shape} do not have rank {rank}")
    counts = [shape[-2] for shape in (boxes, scores, anchors) if shape is not None]
    if counts:
        unified(op, counts, "the numbers of boxes, scores and anchors")
    return [(1, rows, 4), (1, rows), (1, rows), (1,)]


def _einsum(op: Op, s: ShapeContext) -> Result:
    """The sizes that the letters of the right side have on the left; without a right side, letters that occur once, sorted.

    The dimensions that an ellipsis stands for broadcast; without a right side they come first.
    """
    left, arrow, right = str(op["equation"]).replace(" ", "").partition("->")
    terms, shapes = left.split(","), [s.shape(i) for i in range(len(op.inputs))]
    if len(terms) != len(shapes):
        raise failure(op, f"{len(terms)} terms in {op['equation']!r} for {len(shapes)} inputs")
    if any(shape is None for shape in shapes):
        return [None]
    sizes: dict[str, list[Size]] = {}
    rest: list[Shape | None] = []
    for term, shape in zip(terms, shapes, strict=True):
        assert shape is not None
        front, dots, back = term.partition("...")
        if len(shape) < len(front + back) or (not dots and len(shape) > len(term)):
            raise failure(op, f"the term {term!r} does not fit the shape {shape}")
        end = len(shape) - len(back)
        for letter, size in zip(front + back, (*shape[: len(front)], *shape[end:]), strict=True):
            sizes.setdefault(letter, []).append(size)
        rest.append(shape[len(front) : end])
    joined = broadcast(op, rest)
    wanted = right if arrow else "..." + "".join(sorted(letter for letter in sizes if left.count(letter) == 1))
    front, dots, back = wanted.partition("...")
    if any(letter not in sizes for letter in front + back) or (joined and not dots):
        raise failure(op, f"the right side of {op['equation']!r} does not fit the left side")
    known = {letter: unified(op, [size for size in found if size != 1] or [1], f"sizes of {letter!r}") for letter, found in sizes.items()}
    return [(*(known[letter] for letter in front), *(joined or ()), *(known[letter] for letter in back))]


def _dynamic_quantize(op: Op, s: ShapeContext) -> Result:
    return [s.shape(0), (), ()]


def _opaque(op: Op, s: ShapeContext) -> Result:
    return [None] * len(op.outputs)


RULES: dict[str, Rule] = {
    "einsum": _einsum,
    "dynamic_quantize": _dynamic_quantize,
    "opaque": _opaque,
    "broadcast": _broadcasting,
    "broadcast_bool": _broadcasting,
    "where": _broadcasting,
    "same": _same,
    "reduce": _reduce,
    "arg": _arg,
    "gemm": _gemm,
    "matmul": _matmul,
    "topk": _topk,
    "one_hot": _one_hot,
    "non_zero": _non_zero,
    "shape": _shape,
    "range": _range,
    "detection": _detection,
}
