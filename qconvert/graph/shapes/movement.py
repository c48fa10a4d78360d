"""Shapes of data movement: joining, splitting, reshaping, slicing, padding, and indexed reads and writes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

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

_FAR = 2**31 - 1  # an end from here on means "to the end of the axis" (ONNX Slice)


def _all_shapes(op: Op, s: ShapeContext) -> list[Shape] | None:
    """The shapes of all inputs, which must have one rank; None if the rank of none is known."""
    known = [shape for i in range(len(op.inputs)) if (shape := s.shape(i)) is not None]
    if len({len(shape) for shape in known}) > 1:
        raise failure(op, f"inputs of different rank: {', '.join(map(str, known))}")
    if not known:
        return None
    return known + [(UNKNOWN,) * len(known[0])] * (len(op.inputs) - len(known))


def _concat(op: Op, s: ShapeContext) -> Result:
    shapes = _all_shapes(op, s)
    if shapes is None:
        return [None]
    (axis,) = normalized(op, [int(op["axis"])], len(shapes[0]))
    result = [
        unified(op, sizes, f"sizes along axis {i}") if i != axis else _sum(sizes) for i, sizes in enumerate(zip(*shapes, strict=True))
    ]
    return [tuple(result)]


def _sum(sizes: Sequence[Size]) -> Size:
    total = sum(size for size in sizes if isinstance(size, int))
    symbols = [size for size in sizes if isinstance(size, str)]
    if not symbols:
        return total
    return symbols[0] if len(symbols) == 1 and total == 0 else UNKNOWN


def _pack(op: Op, s: ShapeContext) -> Result:
    shapes = _all_shapes(op, s)
    if shapes is None:
        return [None]
    (axis,) = normalized(op, [int(op["axis"])], len(shapes[0]) + 1)
    sizes = [unified(op, sizes, f"sizes along axis {i}") for i, sizes in enumerate(zip(*shapes, strict=True))]
    return [(*sizes[:axis], len(op.inputs), *sizes[axis:])]


def _unpack(op: Op, s: ShapeContext) -> Result:
    data = s.shape(0)
    if data is None:
        return [None] * len(op.outputs)
    (axis,) = normalized(op, [int(op["axis"])], len(data))
    if isinstance(data[axis], int) and data[axis] != len(op.outputs):
        raise failure(op, f"{len(op.outputs)} outputs from an axis of {data[axis]}")
    return [(*data[:axis], *data[axis + 1 :])] * len(op.outputs)


def _split(op: Op, s: ShapeContext) -> Result:
    data, sizes = s.shape(0), s.ints(1)
    if sizes is not None and (len(sizes) != len(op.outputs) or min(sizes, default=0) < 0):
        raise failure(op, f"sizes {sizes} for {len(op.outputs)} outputs")
    if data is None:
        return [None] * len(op.outputs)
    (axis,) = normalized(op, [int(op["axis"])], len(data))
    if sizes is not None and isinstance(data[axis], int) and sum(sizes) != data[axis]:
        raise failure(op, f"sizes {sizes} from an axis of {data[axis]}")
    parts: Sequence[Size] = [UNKNOWN] * len(op.outputs) if sizes is None else sizes
    return [(*data[:axis], part, *data[axis + 1 :]) for part in parts]


def _factors(sizes: Sequence[Size]) -> tuple[int, Counter[str]]:
    """The product of the numbers, and how often each name occurs."""
    symbols = Counter(size for size in sizes if isinstance(size, str))
    return math.prod(size for size in sizes if isinstance(size, int)), symbols


def _reshape(op: Op, s: ShapeContext) -> Result:
    """0 copies the size of the same axis, one -1 takes what is left (ONNX Reshape); with allowzero, 0 is a size."""
    data, sizes = s.shape(0), s.ints(1)
    if sizes is None:
        return [s.unknowns(1)]
    if sizes.count(-1) > 1 or min(sizes, default=0) < -1:
        raise failure(op, f"{sizes} is no shape")
    result: list[Size] = list(sizes)
    for axis in (axis for axis, size in enumerate(sizes) if size == 0 and not op["allowzero"]):
        if data is not None and axis >= len(data):
            raise failure(op, f"{sizes} copies axis {axis} of shape {data}")
        result[axis] = UNKNOWN if data is None else data[axis]
    if data is None or UNKNOWN in data:
        return [tuple(UNKNOWN if size == -1 else size for size in result)]
    number, symbols = _factors(data)
    known, repeated = _factors([size for size in result if size != -1])
    if -1 in result:
        result[result.index(-1)] = _left_over(op, data, sizes, (number, symbols), (known, repeated))
    elif symbols == repeated and number != known:
        raise failure(op, f"data of shape {data} do not become {sizes}")
    return [tuple(result)]


def _left_over(op: Op, data: Shape, sizes: list[int], whole: tuple[int, Counter[str]], known: tuple[int, Counter[str]]) -> Size:
    """The size that -1 stands for: the elements of `data` divided by the known sizes."""
    if known[1] - whole[1]:
        return UNKNOWN
    left = whole[1] - known[1]
    if not left:
        if (known[0] == 0 and whole[0]) or (known[0] and whole[0] % known[0]):
            raise failure(op, f"data of shape {data} do not become {sizes}")
        return whole[0] // known[0] if known[0] else 0
    return next(iter(left)) if left.total() == 1 and whole[0] == known[0] and whole[0] else UNKNOWN


def _squeeze(op: Op, s: ShapeContext) -> Result:
    data, listed = s.shape(0), s.ints(1)
    if data is None or listed is None:
        return [None]
    axes = normalized(op, listed, len(data))
    if any(isinstance(data[axis], int) and data[axis] != 1 for axis in axes):
        raise failure(op, f"axes {axes} of shape {data} are not all of size 1")
    return [tuple(size for axis, size in enumerate(data) if axis not in axes)]


def _unsqueeze(op: Op, s: ShapeContext) -> Result:
    data, listed = s.shape(0), s.ints(1)
    if data is None or listed is None:
        return [None]
    axes = set(normalized(op, listed, len(data) + len(listed)))
    rest = iter(data)
    return [tuple(1 if axis in axes else next(rest) for axis in range(len(data) + len(axes)))]


def _transpose(op: Op, s: ShapeContext) -> Result:
    data, perm = s.shape(0), op["perm"]
    if sorted(perm) != list(range(len(perm) if data is None else len(data))):
        raise failure(op, f"{perm} is no permutation of {'the axes' if data is None else f'rank {len(data)}'}")
    return [None if data is None else tuple(data[axis] for axis in perm)]


def _slice(op: Op, s: ShapeContext) -> Result:
    """Starts, ends, axes and steps as numpy has them, which is ONNX's meaning too."""
    data, starts, ends, axes = s.shape(0), s.ints(1), s.ints(2), s.ints(3)
    if data is None:
        return [None]
    if axes is None:
        return [(UNKNOWN,) * len(data)]
    steps = s.ints(4) if s.has(4) else [1] * len(axes)
    if any(column is not None and len(column) != len(axes) for column in (starts, ends, steps)) or (steps and 0 in steps):
        raise failure(op, f"starts {starts}, ends {ends} and steps {steps} do not fit axes {axes}")
    result: list[Size] = list(data)
    for i, axis in enumerate(normalized(op, axes, len(data))):
        bounds = None if starts is None or ends is None or steps is None else (starts[i], ends[i], steps[i])
        result[axis] = _sliced(data[axis], bounds)
    return [tuple(result)]


def _sliced(size: Size, bounds: tuple[int, int, int] | None) -> Size:
    if bounds is None:
        return UNKNOWN
    start, end, step = bounds
    if isinstance(size, int):
        return len(range(*slice(start, end, step).indices(size)))
    whole = (start == 0 and end >= _FAR and step == 1) or (start == -1 and end <= -_FAR and step == -1)
    return size if whole else UNKNOWN


def _pad(op: Op, s: ShapeContext) -> Result:
    data, pads = s.shape(0), s.ints(1)
    if data is None:
        return [None]
    if pads is None:
        return [(UNKNOWN,) * len(data)]
    rank = len(data)
    if len(pads) != 2 * rank:
        raise failure(op, f"{len(pads)} pads for data of shape {data}")
    result: list[Size] = []
    for axis, size in enumerate(data):
        extra = pads[axis] + pads[rank + axis]
        if isinstance(size, int) and size + extra < 0:
            raise failure(op, f"pads of {extra} along axis {axis} of shape {data}")
        result.append(size + extra if isinstance(size, int) else size if not extra else UNKNOWN)
    return [tuple(result)]


def _tile(op: Op, s: ShapeContext) -> Result:
    data, repeats = s.shape(0), s.ints(1)
    if data is None:
        return [None]
    if repeats is None:
        return [(UNKNOWN,) * len(data)]
    if len(repeats) != len(data) or min(repeats, default=0) < 0:
        raise failure(op, f"repeats {repeats} do not fit data of shape {data}")
    return [tuple(size * n if isinstance(size, int) else size if n == 1 else UNKNOWN for size, n in zip(data, repeats, strict=True))]


def _expand(op: Op, s: ShapeContext) -> Result:
    data, sizes = s.shape(0), s.ints(1)
    if sizes is None:
        return [broadcast(op, [data, s.unknowns(1)])]
    if min(sizes, default=0) < 0:
        raise failure(op, f"{sizes} is no shape")
    return [broadcast(op, [data, tuple(sizes)])]


def _gather(op: Op, s: ShapeContext) -> Result:
    data, indices, batch = s.shape(0), s.shape(1), int(op["batch_dims"])
    if data is None or indices is None:
        return [None]
    (axis,) = normalized(op, [int(op["axis"])], len(data))
    if not 0 <= batch <= min(axis, len(indices)):
        raise failure(op, f"{batch} batch dimensions do not fit axis {axis} and indices of shape {indices}")
    leading = [unified(op, [data[i], indices[i]], f"sizes of batch dimension {i}") for i in range(batch)]
    return [(*leading, *data[batch:axis], *indices[batch:], *data[axis + 1 :])]


def _indexed(op: Op, data: Shape, indices: Shape, batch: int) -> Shape | None:
    """What the rows of `indices` choose from `data`; None if the length of a row is not known."""
    if not indices or not 0 <= batch < len(indices):
        raise failure(op, f"indices of shape {indices} have no rows behind {batch} batch dimensions")
    if isinstance(indices[-1], str):
        return None
    if batch + indices[-1] > len(data):
        raise failure(op, f"rows of {indices[-1]} indices for data of shape {data}")
    return data[batch + indices[-1] :]


def _gather_nd(op: Op, s: ShapeContext) -> Result:
    data, indices, batch = s.shape(0), s.shape(1), int(op["batch_dims"])
    if data is None or indices is None:
        return [None]
    chosen = _indexed(op, data, indices, batch)
    leading = [unified(op, [data[i], indices[i]], f"sizes of batch dimension {i}") for i in range(batch)]
    return [None if chosen is None else (*leading, *indices[batch:-1], *chosen)]


def _scatter_nd(op: Op, s: ShapeContext) -> Result:
    data, indices, updates = s.shape(0), s.shape(1), s.shape(2)
    if data is not None and indices is not None and updates is not None:
        chosen = _indexed(op, data, indices, 0)
        wanted = None if chosen is None else (*indices[:-1], *chosen)
        if wanted is not None and len(wanted) != len(updates):
            raise failure(op, f"updates of shape {updates}, not {wanted}")
        for axis, sizes in enumerate(zip(wanted or (), updates, strict=False)):
            unified(op, sizes, f"sizes of updates and indexed data along axis {axis}")
    return [data]


def _gather_elements(op: Op, s: ShapeContext) -> Result:
    data, indices = s.shape(0), s.shape(1)
    if data is not None:
        normalized(op, [int(op["axis"])], len(data))
        if indices is not None and len(indices) != len(data):
            raise failure(op, f"indices of shape {indices} for data of shape {data}")
    return [indices]


RULES: dict[str, Rule] = {
    "gather_elements": _gather_elements,
    "concat": _concat,
    "pack": _pack,
    "unpack": _unpack,
    "split": _split,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "tile": _tile,
    "expand": _expand,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "scatter_nd": _scatter_nd,
}
