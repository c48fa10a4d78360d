"""Joining tensors and taking them apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op, Shape
from qconvert.operators.attributes import ACTIVATION, has, integer
from qconvert.operators.call import Call, apply_activation, has_one_quantization, is_per_tensor
from qconvert.operators.kind import Kind
from qconvert.operators.properties import ALONG_AXIS, UNLESS_ALONG, WHEREVER, Operands, Samples, unless_along, within_data
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, Size, UnknownRankError, failure, stated_axis, unify_sizes


def _all_shapes(op: Op, s: ShapeContext) -> list[Shape]:
    """The shapes of all inputs, which must have one rank; raises UnknownRankError if the rank of none is known."""
    known = [shape for i in range(len(op.inputs)) if (shape := s.shape(i)) is not None]
    if len({len(shape) for shape in known}) > 1:
        raise failure(op, f"inputs of different rank: {', '.join(map(str, known))}", rule="wrong-rank")
    if not known:
        raise UnknownRankError
    return known + [(UNKNOWN,) * len(known[0])] * (len(op.inputs) - len(known))


def _concat_shape(op: Op, s: ShapeContext) -> Shapes:
    shapes = _all_shapes(op, s)
    axis = stated_axis(op, len(shapes[0]))
    result = [
        unify_sizes(op, sizes, f"sizes along axis {i}") if i != axis else _sum(sizes) for i, sizes in enumerate(zip(*shapes, strict=True))
    ]
    return [tuple(result)]


def _matching_concat(operands: Operands) -> Iterator[tuple[Size, Size]]:
    """All sizes but those along the axis."""
    shapes = [operands.shape(index) for index in range(len(operands.tensors))]
    known = [shape for shape in shapes if shape]
    if None in shapes or not known:
        return
    axis = int(operands.op["axis"]) % len(known[0])
    for shape in known[1:]:
        yield from (pair for at, pair in enumerate(zip(known[0], shape, strict=False)) if at != axis)


def _matching_split(operands: Operands) -> Iterator[tuple[Size, Size]]:
    data, sizes = operands.shape(0), operands.constant(1)
    if data and sizes is not None:
        yield data[operands.op["axis"]], int(sizes.sum())


def _sum(sizes: Sequence[Size]) -> Size:
    total = sum(size for size in sizes if isinstance(size, int))
    symbols = [size for size in sizes if isinstance(size, str)]
    if not symbols:
        return total
    return symbols[0] if len(symbols) == 1 and total == 0 else UNKNOWN


def _pack_shape(op: Op, s: ShapeContext) -> Shapes:
    shapes = _all_shapes(op, s)
    axis = stated_axis(op, len(shapes[0]) + 1)
    sizes = [unify_sizes(op, sizes, f"sizes along axis {i}") for i, sizes in enumerate(zip(*shapes, strict=True))]
    return [(*sizes[:axis], len(op.inputs), *sizes[axis:])]


def _unpack_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.known_shape(0)
    axis = stated_axis(op, len(data))
    if isinstance(data[axis], int) and data[axis] != len(op.outputs):
        raise failure(op, f"{len(op.outputs)} outputs from an axis of {data[axis]}", rule="sizes-do-not-divide")
    return [(*data[:axis], *data[axis + 1 :])] * len(op.outputs)


def _split_shape(op: Op, s: ShapeContext) -> Shapes:
    sizes = s.ints(1)
    if sizes is not None and (len(sizes) != len(op.outputs) or min(sizes, default=0) < 0):
        raise failure(op, f"sizes {sizes} for {len(op.outputs)} outputs", rule="sizes-do-not-divide")
    data = s.known_shape(0)
    axis = stated_axis(op, len(data))
    if sizes is not None and isinstance(data[axis], int) and sum(sizes) != data[axis]:
        raise failure(op, f"sizes {sizes} from an axis of {data[axis]}", rule="sizes-do-not-divide")
    parts: Sequence[Size] = [UNKNOWN] * len(op.outputs) if sizes is None else sizes
    return [(*data[:axis], part, *data[axis + 1 :]) for part in parts]


def concat(call: Call) -> Array:
    """Concat of ONNX; inputs of other scales are requantized."""
    joined = np.concatenate(call.all_values(), axis=call["axis"])
    return apply_activation(joined, call["activation"])


def _concat_fold(call: Call) -> Any:
    if not has_one_quantization(call) or call["activation"] or not is_per_tensor(call):
        return None
    return np.concatenate([call.raw(i) for i in range(len(call.stored))], axis=call["axis"])


def pack(call: Call) -> Array:
    """Stacks the inputs along a new axis."""
    return np.stack([call.raw(i) for i in range(len(call.stored))], axis=call["axis"])


def unpack(call: Call) -> list[Array]:
    """Takes an axis apart: one output for each index."""
    return list(np.moveaxis(call.raw(), call["axis"], 0))


def split_by_sizes(call: Call) -> list[Array]:
    """Split of ONNX into parts of given sizes."""
    return np.split(call.raw(), np.cumsum(call.ints(1))[:-1], axis=call["axis"])


def _all_inputs(op: Op, axis: int) -> dict[int, int]:
    """A constant next to the samples stands for one of them."""
    return dict.fromkeys(range(len(op.inputs)), axis)


_JOINS = Samples(UNLESS_ALONG.is_separate, _all_inputs)

KINDS = (
    # Inputs of other scales are requantized.
    Kind(
        "Concat",
        "data...",
        samples=_JOINS,
        bounds=within_data,
        matching_sizes=_matching_concat,
        keeps_range=True,
        shape=_concat_shape,
        evaluate=concat,
        fold=_concat_fold,
        layout=ALONG_AXIS,
        chooses=True,
        by_place=True,
        attributes=has(ACTIVATION, axis=integer()),
        rounds_once=True,
    ),
    Kind(
        "Pack",
        "data...",
        samples=Samples(WHEREVER.is_separate, _all_inputs),
        shape=_pack_shape,
        rule="move",
        evaluate=pack,
        keeps_axis=lambda move: move.b == move.a + (move.a >= move.op["axis"] % len(move.after)),
        attributes=has(axis=integer()),
    ),
    Kind(
        "Unpack",
        "data",
        "data...",
        samples=UNLESS_ALONG,
        shape=_unpack_shape,
        rule="move",
        evaluate=unpack,
        keeps_axis=lambda move: move.a == move.b + (move.b >= move.op["axis"] % len(move.before)),
        attributes=has(axis=integer()),
    ),
    Kind(
        "Split",
        "data index",
        "data...",
        samples=UNLESS_ALONG,
        matching_sizes=_matching_split,
        shape=_split_shape,
        rule="move",
        evaluate=split_by_sizes,
        layout=ALONG_AXIS,
        keeps_axis=unless_along,
        attributes=has(axis=integer()),
    ),
)
