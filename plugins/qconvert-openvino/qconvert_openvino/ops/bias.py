"""Biases, which are separate Add operators in OpenVINO."""

from __future__ import annotations

from typing import Any

from qconvert.plugin import Op
from qconvert_openvino.constants import constant_of
from qconvert_openvino.reading import Reading
from qconvert_openvino.writing import Writing


def read_bias(r: Reading, channels: int, rank: int, axis: int) -> tuple[Reading, list[str]]:
    """Return the layer of the result, either this one or an Add of a constant per channel after it, and the bias.

    Args:
        r: a sum of products.
        channels: the number of outputs.
        rank: of its result.
        axis: the axis of the outputs.
    """
    add = r.sole_reader()
    if add is None or add.type != "Add" or len(add.inputs) != 2 or channels < 1:
        return r, []
    other = next((source for source, _ in add.inputs if source is not r.node), None)
    item = None if other is None else constant_of(other)
    if item is None or (item.scale is None and item.dtype != "float32"):
        return r, []
    shape = (1,) * (rank - item.data.ndim) + item.data.shape
    if shape != tuple(channels if place == axis else 1 for place in range(rank)):
        return r, []
    r.draft.done.add(add.id)
    return Reading(r.draft, add), [r.draft.constant(item.reshape((channels,)), "bias")]


def write_bias(op: Op, w: Writing, found: Any, axis: int) -> Any:
    """Add the bias, if there is one, along an axis of the result."""
    if not op.has(2):
        return found
    tensor = w.graph[op.inputs[2]]
    rank = found.output(0).get_partial_shape().rank.get_length()
    sizes = [1] * rank
    if tensor.data is None or tensor.data.ndim != 1:
        if tensor.rank == 1 and axis != rank - 1:
            sizes[axis] = -1
            return w.op.add(found, w.op.reshape(w.value(tensor.name), w.numbers(sizes), False))
        return w.op.add(found, w.value(tensor.name))
    sizes[axis] = tensor.data.size
    data, q = tensor.data.reshape(sizes), tensor.quantization
    if q is None:
        return w.op.add(found, w.array(data, tensor.dtype, tensor.name))
    return w.op.add(found, w.integers(tensor, q, data, sizes if q.axis is not None else ()))
