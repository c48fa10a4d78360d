"""The same elements in another shape or another order of axes, once or repeated."""

from __future__ import annotations

from collections import Counter

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op, Shape
from qconvert.operators.attributes import flag, has, integers
from qconvert.operators.call import Call
from qconvert.operators.kind import Kind
from qconvert.operators.properties import TRANSPOSES, WHEREVER, AxisMove, per_axis, same_axes, with_sizes
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, Size, broadcast, factors_of_sizes, failure, normalize_axes


def _reshape_shape(op: Op, s: ShapeContext) -> Shapes:
    """0 copies the size of the same axis, one -1 takes what is left (ONNX Reshape); with allowzero, 0 is a size."""
    data, sizes = s.shape(0), s.ints(1)
    if sizes is None:
        described = s.unknowns(1)
        return [None if described is None else tuple(UNKNOWN if size in (0, -1) else size for size in described)]
    if sizes.count(-1) > 1 or min(sizes, default=0) < -1:
        raise failure(op, f"{sizes} is not a shape", rule="invalid-shape")
    result: list[Size] = list(sizes)
    for axis in (axis for axis, size in enumerate(sizes) if size == 0 and not op["allowzero"]):
        if data is not None and axis >= len(data):
            raise failure(op, f"{sizes} copies axis {axis} of shape {data}", rule="shape-mismatch")
        result[axis] = UNKNOWN if data is None else data[axis]
    if data is None or UNKNOWN in data:
        return [tuple(UNKNOWN if size == -1 else size for size in result)]
    number, symbols = factors_of_sizes(data)
    known, repeated = factors_of_sizes([size for size in result if size != -1])
    if -1 in result:
        result[result.index(-1)] = _infer_size(op, data, sizes, (number, symbols), (known, repeated))
    elif symbols == repeated and number != known:
        raise failure(op, f"data of shape {data} cannot be reshaped to {sizes}", rule="shape-mismatch")
    return [tuple(result)]


def _infer_size(op: Op, data: Shape, sizes: list[int], whole: tuple[int, Counter[str]], known: tuple[int, Counter[str]]) -> Size:
    """The size that -1 stands for: the elements of `data` divided by the known sizes."""
    if known[1] - whole[1]:
        return UNKNOWN
    left = whole[1] - known[1]
    if not left:
        if (known[0] == 0 and whole[0]) or (known[0] and whole[0] % known[0]):
            raise failure(op, f"data of shape {data} cannot be reshaped to {sizes}", rule="shape-mismatch")
        return whole[0] // known[0] if known[0] else 0
    return next(iter(left)) if left.total() == 1 and whole[0] == known[0] and whole[0] else UNKNOWN


def _squeeze_shape(op: Op, s: ShapeContext) -> Shapes:
    listed, data = s.ints(1), s.known_shape(0)
    if listed is None:
        return [None]
    axes = normalize_axes(op, listed, len(data))
    if any(isinstance(data[axis], int) and data[axis] != 1 for axis in axes):
        raise failure(op, f"axes {axes} of shape {data} are not all of size 1", rule="shape-mismatch")
    return [tuple(size for axis, size in enumerate(data) if axis not in axes)]


def _unsqueeze_shape(op: Op, s: ShapeContext) -> Shapes:
    listed, data = s.ints(1), s.known_shape(0)
    if listed is None:
        return [None]
    axes = set(normalize_axes(op, listed, len(data) + len(listed)))
    rest = iter(data)
    return [tuple(1 if axis in axes else next(rest) for axis in range(len(data) + len(axes)))]


def _transpose_shape(op: Op, s: ShapeContext) -> Shapes:
    data, perm = s.shape(0), op["perm"]
    if sorted(perm) != list(range(len(perm) if data is None else len(data))):
        raise failure(op, f"{perm} is not a permutation of {'the axes' if data is None else f'rank {len(data)}'}", rule="not-a-permutation")
    return [None if data is None else tuple(data[axis] for axis in perm)]


def _tile_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.known_shape(0)
    repeats = s.sizes(1, len(data))
    if len(repeats) != len(data) or any(isinstance(n, int) and n < 0 for n in repeats):
        raise failure(op, f"repeats {repeats} do not fit data of shape {data}", rule="shape-mismatch")
    return [tuple(_repeat_size(size, n) for size, n in zip(data, repeats, strict=True))]


def _repeat_size(size: Size, n: Size) -> Size:
    if isinstance(size, int) and isinstance(n, int):
        return size * n
    return size if n == 1 else n if size == 1 else UNKNOWN


def _expand_shape(op: Op, s: ShapeContext) -> Shapes:
    data, sizes = s.shape(0), s.ints(1)
    if sizes is None:
        return [broadcast(op, [data, s.unknowns(1)])]
    if min(sizes, default=0) < 0:
        raise failure(op, f"{sizes} is not a shape", rule="invalid-shape")
    return [broadcast(op, [data, tuple(sizes)])]


def reshape(call: Call) -> Array:
    """Reshape of ONNX: 0 keeps a size but with allowzero, -1 is what remains."""
    data = call.raw()
    return data.reshape([data.shape[i] if size == 0 and not call["allowzero"] else size for i, size in enumerate(call.ints(1))])


def unsqueeze(call: Call) -> Array:
    """Unsqueeze of ONNX; axes count in the output."""
    return np.expand_dims(call.raw(), tuple(call.ints(1)))


def expand(call: Call) -> Array:
    """Expand of ONNX: broadcasting in both directions."""
    data = call.raw()
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(call.ints(1)))).copy()


def squeeze(call: Call) -> Array:
    """Squeeze of ONNX."""
    return np.squeeze(call.raw(), tuple(call.ints(1)))


def transpose(call: Call) -> Array:
    """Transpose of ONNX."""
    return call.raw().transpose(call["perm"])


def tile(call: Call) -> Array:
    """Tile of ONNX."""
    return np.tile(call.raw(), call.ints(1))


def _keeps_untiled_axis(move: AxisMove) -> bool:
    repeats = move.constant(1)
    return move.a == move.b and repeats.size == len(move.before) and bool(repeats[move.a] == 1)


KINDS = (
    Kind(
        "Reshape",
        "data index",
        samples=WHEREVER,
        canonical=with_sizes,
        shape=_reshape_shape,
        rule="move",
        evaluate=reshape,
        keeps_axis=same_axes,
        attributes=has(allowzero=flag(0)),
    ),
    Kind(
        "Squeeze",
        "data index",
        samples=WHEREVER,
        canonical=with_sizes,
        shape=_squeeze_shape,
        rule="move",
        evaluate=squeeze,
        keeps_axis=same_axes,
    ),
    Kind(
        "Unsqueeze",
        "data index",
        samples=WHEREVER,
        canonical=with_sizes,
        shape=_unsqueeze_shape,
        rule="move",
        evaluate=unsqueeze,
        keeps_axis=same_axes,
    ),
    Kind(
        "Transpose",
        samples=WHEREVER,
        shape=_transpose_shape,
        rule="move",
        evaluate=transpose,
        layout=TRANSPOSES,
        keeps_axis=lambda move: move.op["perm"][move.b] == move.a,
        attributes=has(perm=integers()),
    ),
    Kind(
        "Tile",
        "data index",
        samples=WHEREVER,
        domain=lambda operands, number: [(1, 1, 2)],
        shape=_tile_shape,
        rule="move",
        evaluate=tile,
        layout=per_axis(1, "repeats"),
        keeps_axis=_keeps_untiled_axis,
    ),
    Kind(
        "Expand",
        "data index",
        samples=WHEREVER,
        shape=_expand_shape,
        rule="move",
        evaluate=expand,
        keeps_axis=lambda move: move.b == move.a + len(move.after) - len(move.before),
    ),
)
