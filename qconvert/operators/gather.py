"""Reading and writing at indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import saturate
from qconvert.arithmetic.storage import Array
from qconvert.errors import UnsupportedError
from qconvert.graph.schema import Op, Shape
from qconvert.operators.attributes import along_axis, choice, has, integer
from qconvert.operators.call import Call, Fold, Result, movement_fold
from qconvert.operators.kind import Kind
from qconvert.operators.properties import (
    ANY,
    MIXES,
    UNLESS_ALONG,
    AxisMove,
    Demand,
    Interval,
    Layout,
    Number,
    Operands,
    Samples,
    Suits,
    hull,
    unless_along,
)
from qconvert.operators.sizes import ShapeContext, Shapes, failure, normalize_axes, stated_axis, unify_sizes


def _gather_shape(op: Op, s: ShapeContext) -> Shapes:
    data, indices, batch = s.known_shape(0), s.known_shape(1), int(op["batch_dims"])
    axis = stated_axis(op, len(data))
    if not 0 <= batch <= min(axis, len(indices)):
        raise failure(op, f"{batch} batch dimensions do not fit axis {axis} and indices of shape {indices}", rule="shape-mismatch")
    leading = [unify_sizes(op, [data[i], indices[i]], f"sizes of batch dimension {i}") for i in range(batch)]
    return [(*leading, *data[batch:axis], *indices[batch:], *data[axis + 1 :])]


def _indexed_shape(op: Op, data: Shape, indices: Shape, batch: int) -> Shape | None:
    """What the rows of `indices` choose from `data`; None if the length of a row is not known."""
    if not indices or not 0 <= batch < len(indices):
        raise failure(op, f"indices of shape {indices} have no rows after {batch} batch dimensions", rule="shape-mismatch")
    if isinstance(indices[-1], str):
        return None
    if batch + indices[-1] > len(data):
        raise failure(op, f"rows of {indices[-1]} indices for data of shape {data}", rule="shape-mismatch")
    return data[batch + indices[-1] :]


def _gather_nd_shape(op: Op, s: ShapeContext) -> Shapes:
    data, indices, batch = s.known_shape(0), s.known_shape(1), int(op["batch_dims"])
    chosen = _indexed_shape(op, data, indices, batch)
    leading = [unify_sizes(op, [data[i], indices[i]], f"sizes of batch dimension {i}") for i in range(batch)]
    return [None if chosen is None else (*leading, *indices[batch:-1], *chosen)]


def _scatter_nd_shape(op: Op, s: ShapeContext) -> Shapes:
    data, indices, updates = s.shape(0), s.shape(1), s.shape(2)
    if data is not None and indices is not None and updates is not None:
        chosen = _indexed_shape(op, data, indices, 0)
        wanted = None if chosen is None else (*indices[:-1], *chosen)
        if wanted is not None and len(wanted) != len(updates):
            raise failure(op, f"updates of shape {updates}, not {wanted}", rule="shape-mismatch")
        for axis, sizes in enumerate(zip(wanted or (), updates, strict=False)):
            unify_sizes(op, sizes, f"sizes of updates and indexed data along axis {axis}")
    return [data]


def _gather_elements_shape(op: Op, s: ShapeContext) -> Shapes:
    data, indices = s.shape(0), s.shape(1)
    if data is not None:
        stated_axis(op, len(data))
        if indices is not None and len(indices) != len(data):
            raise failure(op, f"indices of shape {indices} for data of shape {data}", rule="shape-mismatch")
    return [indices]


def gather(call: Call) -> Array:
    """Gather of ONNX; the first `batch_dims` dimensions of data and indices go together."""
    data, indices, batch, axis = call.raw(), call.raw(1).astype(np.int64), call["batch_dims"], call["axis"]
    axis = axis % data.ndim
    if not batch:
        return np.take(data, indices, axis)
    lines = np.indices(indices.shape, sparse=True)[:batch]
    found = np.moveaxis(data, axis, batch)[(*lines, indices)]
    return np.moveaxis(found, range(batch, indices.ndim), range(axis, axis + indices.ndim - batch))


def gather_nd(call: Call) -> Array:
    """GatherND of ONNX."""
    data, indices, batch = call.raw(), call.raw(1).astype(np.int64), call["batch_dims"]
    lines = np.indices(indices.shape[:batch], sparse=True) if batch else ()
    samples = [line.reshape(line.shape + (1,) * (indices.ndim - 1 - batch)) for line in lines]
    return np.asarray(data[(*samples, *np.moveaxis(indices, -1, 0))])


_REDUCTIONS = {"mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _elements(call: Call) -> tuple[Array, ...]:
    """The place in the data that each element of the indices names: its own, but for the operator's axis."""
    indices = call.raw(1).astype(np.int64)
    at: list[Array] = list(np.indices(indices.shape))
    at[call["axis"]] = indices
    return tuple(at)


def scatter_nd(call: Call) -> Result:
    """ScatterND of ONNX."""
    return _scatter_updates(call, tuple(_rows(call)))


def _scatter_updates(call: Call, at: tuple[Array, ...]) -> Result:
    """The data with updates at some places; quantized values that meet at one place are added as float values."""
    data, updates, reduction = call.raw(), call.raw(2), call["reduction"]
    if reduction == "add" and call.quantization() is not None:
        zero = int(call.real_zero())
        total = data.astype(np.int64)
        np.add.at(total, at, updates.astype(np.int64) - zero)
        return saturate(total, call.results[0].dtype)
    if reduction == "mul" and call.quantization() is not None:
        raise UnsupportedError(
            "the product of updates and quantized values does not keep their scale and zero point", where=str(call.op), rule="not-evaluated"
        )
    result = data.copy()
    if reduction == "none":
        result[at] = updates
    elif reduction == "add":
        np.add.at(result, at, updates)
    else:
        _REDUCTIONS[reduction].at(result, at, updates)
    return result


def gather_elements(call: Call) -> Array:
    """GatherElements of ONNX."""
    return np.asarray(call.raw()[_elements(call)])


def scatter_elements(call: Call) -> Result:
    """ScatterElements of ONNX."""
    return _scatter_updates(call, _elements(call))


def _reverse_sequence_shape(op: Op, s: ShapeContext) -> Shapes:
    data, lengths = s.known_shape(0), s.shape(1)
    _, batch = normalize_axes(op, [int(op["time_axis"]), int(op["batch_axis"])], len(data))
    if lengths is not None:
        if len(lengths) != 1:
            raise failure(op, f"lengths of shape {lengths} are not a vector", rule="wrong-rank")
        unify_sizes(op, [lengths[0], data[batch]], "the numbers of lengths and of sequences")
    return [data]


def reverse_sequence(call: Call) -> Array:
    """ReverseSequence of ONNX: of each sequence, the first elements along time_axis, as many as its length says, in reverse order."""
    data = np.moveaxis(call.raw(), (call["batch_axis"], call["time_axis"]), (0, 1))
    result = data.copy()
    for index, length in enumerate(call.ints(1)):
        result[index, :length] = data[index, :length][::-1]
    return np.moveaxis(result, (0, 1), (call["batch_axis"], call["time_axis"]))


def _tensor_scatter_shape(op: Op, s: ShapeContext) -> Shapes:
    data, update, starts = s.shape(0), s.shape(1), s.shape(2) if s.has(2) else None
    if data is None or update is None:
        return [data]
    axis = stated_axis(op, len(data))
    if axis == 0 or len(update) != len(data):
        raise failure(op, f"an update of shape {update} along axis {axis} of data of shape {data}", rule="shape-mismatch")
    if starts is not None and len(starts) != 1:
        raise failure(op, f"write indices of shape {starts} are not a vector", rule="wrong-rank")
    result: list[int | str] = list(data)
    for place in range(len(data)):
        if place != axis:
            sizes = [data[place], update[place], *(starts if starts is not None and place == 0 else ())]
            result[place] = unify_sizes(op, sizes, f"sizes of data and update along axis {place}")
    if isinstance(data[axis], int) and isinstance(update[axis], int) and int(update[axis]) > int(data[axis]):
        raise failure(op, f"an update of shape {update} does not fit data of shape {data}", rule="shape-mismatch")
    return [tuple(result)]


def tensor_scatter(call: Call) -> Array:
    """TensorScatter of ONNX (opset 24): the data with an update along the axis, from an index of its own in each sample on; in mode
    circular what would hang over the end goes to the start."""
    axis, update = call["axis"] % call.raw().ndim, np.moveaxis(call.raw(1), call["axis"], 1)
    result = np.moveaxis(call.raw().copy(), axis, 1)
    starts = call.raw(2).astype(np.int64) if call.has(2) else np.zeros(len(result), np.int64)
    places = starts[:, None] + np.arange(update.shape[1])
    result[np.arange(len(result))[:, None], places % result.shape[1] if call["mode"] == "circular" else places] = update
    return np.moveaxis(result, 1, axis)


def _unbatched_fold(function: Callable[[Call], Array]) -> Fold:
    return lambda call: None if call["batch_dims"] else movement_fold(function)(call)


def _keeps_ungathered_axis(move: AxisMove) -> bool:
    axis = int(move.op["axis"]) % len(move.before)
    return move.a != axis and move.b == (move.a if move.a < axis else move.a + len(move.after) - len(move.before))


def _distinct_fold(function: Callable[[Call], Result], places: Callable[[Call], Sequence[Array]]) -> Fold:
    """The fold of a write to places that are all different, so that the order of writing does not matter, and nothing is computed."""

    def run(call: Call) -> Any:
        data = call.raw()
        flat = np.ravel_multi_index(tuple(np.where(at < 0, at + size, at) for at, size in zip(places(call), data.shape, strict=False)),
                                    data.shape[: len(places(call))]).reshape(-1)  # fmt: skip
        is_plain = call["reduction"] == "none" and np.unique(flat).size == flat.size
        return movement_fold(function)(call) if is_plain else None

    return run


def _rows(call: Call) -> Sequence[Array]:
    return tuple(np.moveaxis(call.raw(1).astype(np.int64), -1, 0))


_REDUCTION = choice(("none", "add", "mul", "max", "min"), "none")

_UNLESS_INDEXED = Samples(lambda op, index, axis, rank: index == 1 or axis != op["axis"] % rank or op["batch_dims"] > axis)


def _unless_reduced(operands: Operands) -> Interval:
    return hull(operands.data) if operands.op["reduction"] == "none" else ANY


def _along_axis(operands: Operands, number: Number) -> Iterator[Demand]:
    yield 1, 0, operands.size(0, operands.op["axis"], number) - 1


def _coordinates(operands: Operands, number: Number) -> Iterator[Demand]:
    """The smallest of the sizes that the last axis of the indices counts in."""
    batch, depth = int(str(operands.op.attributes.get("batch_dims", 0))), operands.size(1, -1, number)
    yield 1, 0, min((operands.size(0, batch + axis, number) for axis in range(depth)), default=1) - 1


def _write_indices(operands: Operands, number: Number) -> Iterator[Demand]:
    size, count = (operands.size(index, operands.op["axis"], number) for index in (0, 1))
    yield 2, 0, size - (1 if operands.op["mode"] == "circular" else count)


KINDS = (
    Kind(
        "Gather",
        "data index",
        samples=_UNLESS_INDEXED,
        domain=_along_axis,
        shape=_gather_shape,
        rule="move",
        evaluate=gather,
        fold=_unbatched_fold(gather),
        layout=Layout(Suits.KEEPS_RANK, flat=1),
        keeps_axis=_keeps_ungathered_axis,
        attributes=has(axis=integer(0), batch_dims=integer(0)),
    ),
    Kind(
        "GatherND",
        "data index",
        samples=Samples(lambda op, index, axis, rank: index == 1 or op["batch_dims"] > axis),
        domain=_coordinates,
        shape=_gather_nd_shape,
        rule="move",
        evaluate=gather_nd,
        fold=_unbatched_fold(gather_nd),
        attributes=has(batch_dims=integer(0)),
    ),
    Kind(
        "GatherElements",
        "data index",
        samples=UNLESS_ALONG,
        domain=_along_axis,
        shape=_gather_elements_shape,
        rule="move",
        evaluate=gather_elements,
        attributes=has(axis=integer(0)),
    ),
    Kind(
        "ScatterND",
        "data index data",
        samples=MIXES,
        bounds=_unless_reduced,
        domain=_coordinates,
        shape=_scatter_nd_shape,
        rule="move",
        evaluate=scatter_nd,
        fold=_distinct_fold(scatter_nd, _rows),
        attributes=has(reduction=_REDUCTION),
    ),
    Kind(
        "ScatterElements",
        "data index data",
        samples=UNLESS_ALONG,
        bounds=_unless_reduced,
        domain=_along_axis,
        shape=along_axis,
        rule="move",
        evaluate=scatter_elements,
        fold=_distinct_fold(scatter_elements, _elements),
        attributes=has(axis=integer(0), reduction=_REDUCTION),
    ),
    Kind(
        "ReverseSequence",
        "data index",
        samples=Samples(lambda op, index, axis, rank: axis == (0 if index == 1 else op["batch_axis"] % rank)),
        domain=lambda operands, number: [(1, 1, operands.size(0, operands.op["time_axis"], number))],
        shape=_reverse_sequence_shape,
        rule="move",
        evaluate=reverse_sequence,
        keeps_axis=lambda move: move.a == move.b and move.op["time_axis"] % len(move.before) != move.a,
        attributes=has(time_axis=integer(0), batch_axis=integer(1)),
    ),
    Kind(
        "TensorScatter",
        "data data index?",
        samples=Samples(lambda op, index, axis, rank: axis == 0, lambda op, axis: {2: 0} if op.has(2) else {}),
        domain=_write_indices,
        shape=_tensor_scatter_shape,
        rule="move",
        evaluate=tensor_scatter,
        keeps_axis=unless_along,
        attributes=has(axis=integer(-2), mode=choice(("linear", "circular"), "linear")),
    ),
)
