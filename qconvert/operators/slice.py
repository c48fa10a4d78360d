"""Cutting edges off, and adding some."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op
from qconvert.operators.attributes import choice, has
from qconvert.operators.call import Call, movement_fold
from qconvert.operators.kind import Kind
from qconvert.operators.properties import WHEREVER, AxisMove, Layout, Suits, per_axis, within_data_or_zero
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, Size, failure, normalize_axes

_FAR = 2**31 - 1  # an end from here on means "to the end of the axis" (ONNX Slice)


def _slice_shape(op: Op, s: ShapeContext) -> Shapes:
    """Starts, ends, axes and steps as numpy has them, which is ONNX's meaning too."""
    axes = s.ints(3)
    if axes is None:
        return [(UNKNOWN,) * len(s.known_shape(0))]
    count = len(axes)
    starts, ends, steps = (s.sizes(index, count) if s.has(index) else [1] * count for index in (1, 2, 4))
    if any(len(column) != count for column in (starts, ends, steps)) or 0 in steps:
        raise failure(op, f"starts {starts}, ends {ends} and steps {steps} do not fit axes {axes}", rule="counts-differ")
    data = s.known_shape(0)
    result: list[Size] = list(data)
    for i, axis in enumerate(normalize_axes(op, axes, len(data))):
        result[axis] = _slice_size(data[axis], starts[i], ends[i], steps[i])
    return [tuple(result)]


def _slice_size(size: Size, start: Size, end: Size, step: Size) -> Size:
    if start == 0 and step == 1 and isinstance(end, str) and end == size:
        return size
    if isinstance(start, str) or isinstance(end, str) or isinstance(step, str):
        return UNKNOWN
    if isinstance(size, int):
        return len(range(*slice(start, end, step).indices(size)))
    whole = (start == 0 and end >= _FAR and step == 1) or (start == -1 and end <= -_FAR and step == -1)
    return size if whole else UNKNOWN


def _pad_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.known_shape(0)
    rank = len(data)
    pads = s.sizes(1, 2 * rank)
    if len(pads) != 2 * rank:
        raise failure(op, f"{len(pads)} pads for data of shape {data}", rule="counts-differ")
    result: list[Size] = []
    for axis, size in enumerate(data):
        before, after = pads[axis], pads[rank + axis]
        if isinstance(before, str) or isinstance(after, str):
            result.append(UNKNOWN)
            continue
        extra = before + after
        if isinstance(size, int) and size + min(before, 0) + min(after, 0) < 0:
            raise failure(op, f"pads of {before} and {after} along axis {axis} of shape {data}", rule="crop-too-large")
        result.append(size + extra if isinstance(size, int) else size if not extra else UNKNOWN)
    return [tuple(result)]


def slice_(call: Call) -> Array:
    """Slice of ONNX: (data, starts, ends, axes[, steps]), clipped to the data as Python clips slices."""
    data = call.raw()
    starts, ends, axes = (call.ints(index) for index in (1, 2, 3))
    steps = call.ints(4) if call.has(4) else [1] * len(axes)
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(start, end, step)
    return data[tuple(index)]


def pad(call: Call) -> Array:
    """Pad of ONNX; a constant pad is real zero where no value is given."""
    data, edges = call.raw(), call.ints(1)
    widths = list(zip(edges[: data.ndim], edges[data.ndim :], strict=True))
    # Negative pads cut.
    data = data[tuple(slice(max(-a, 0), size - max(-b, 0)) for (a, b), size in zip(widths, data.shape, strict=True))]
    widths = [(max(a, 0), max(b, 0)) for a, b in widths]
    if call["mode"] != "constant":
        return np.pad(data, widths, mode=call["mode"])
    value = call.raw(2).reshape(()) if call.has(2) else call.real_zero()
    return np.pad(data, widths, constant_values=value)


def _keeps_unsliced_axis(move: AxisMove) -> bool:
    axes = move.constant(3)
    return move.a == move.b and axes.size > 0 and move.a not in axes % len(move.before)


def _keeps_unpadded_axis(move: AxisMove) -> bool:
    pads, rank = move.constant(1), len(move.before)
    return move.a == move.b and pads.size == 2 * rank and not pads[[move.a, rank + move.a]].any()


KINDS = (
    Kind(
        "Slice",
        "data index index index index?",
        samples=WHEREVER,
        shape=_slice_shape,
        rule="move",
        evaluate=slice_,
        layout=Layout(Suits.KEEPS_RANK, axes=3),
        keeps_axis=_keeps_unsliced_axis,
    ),
    # Padding of a quantized tensor is real zero, that is, the zero point, where no value is given.
    Kind(
        "Pad",
        "data index filler?",
        samples=WHEREVER,
        bounds=within_data_or_zero,
        shape=_pad_shape,
        rule="move",
        evaluate=pad,
        fold=lambda call: movement_fold(pad)(call) if call["mode"] == "constant" else None,
        layout=per_axis(1, "pads"),
        keeps_axis=_keeps_unpadded_axis,
        attributes=has(mode=choice(("constant", "reflect", "symmetric", "edge", "wrap"), "constant")),
    ),
)
