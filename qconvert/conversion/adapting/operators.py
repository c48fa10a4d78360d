"""Operators whose sizes or constants are stated for some number of samples, mended for another one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.conversion.adapting.samples import Place, Samples
from qconvert.errors import InvalidGraphError
from qconvert.graph import Op, Shape
from qconvert.operators import kind_of
from qconvert.operators.shapes import output_shapes

__all__ = ["adapt_op"]

#: The end of a Slice that takes all.
_FAR = 2**31 - 1


def adapt_op(samples: Samples, op: Op) -> Op:
    """The operator with sizes, or constants, for the new number of samples."""
    data = op.inputs[0] if op.inputs else ""
    if op.kind == "Reshape" and data in samples.places:
        return _adapt_reshape(samples, op, data, samples.places[data])
    if op.kind == "Slice" and data in samples.places:
        return _adapt_slice(samples, op, samples.places[data].axis)
    placed = next((name for name in op.inputs if name in samples.places), "")
    return _repeat_constants(samples, op, kind_of(op).samples.rows(op, samples.places[placed].axis)) if placed else op


def _adapt_reshape(samples: Samples, op: Op, data: str, place: Place) -> Op:
    """A Reshape with the samples along an axis of their own in its result, or joined with the axes before them.

    A single sample may also stand along any axis of size 1, by Transposes: converters write a Reshape for a Transpose of size-1 axes.
    """
    before, given = samples.graph[op.outputs[0]].static_shape, samples.graph[data].static_shape
    if before is None or given is None:
        return op
    whole = math.prod(given[: place.axis]) * place.before
    own, joined, turned = list[int](), list[int](), list[int]()
    for axis, size in enumerate(before):
        outer = math.prod(before[:axis])
        if outer and whole % outer == 0 and size and size % (whole // outer * samples.old) == 0:
            (own if size == samples.old and outer == whole else joined).append(axis)
        elif size == samples.old == 1 and place.before == 1:
            turned.append(axis)
    fitting = [*own, *joined, *turned]
    if not fitting:
        raise samples.batch_error(op, f"gives {op.outputs[0]!r} the shape {before}, which has no batch axis")
    choice = samples.choices.of((samples.within, op.outputs[0]), len(fitting))
    axis = fitting[choice]
    if choice >= len(own) + len(joined):
        return _reshape_each_sample(samples, op, data, place.axis, axis)
    wanted = tuple(int(samples.scale_size(size)) if i == axis else size for i, size in enumerate(before))
    try:
        (found,) = output_shapes(samples.tensors, op, samples.integers)
    except InvalidGraphError:
        found = None
    return op if found == wanted else samples.with_constant(op, 1, np.array(wanted, np.int64))


def _reshape_each_sample(samples: Samples, op: Op, data: str, axis: int, to: int) -> Op:
    """A Reshape of each sample by itself: of samples along the first axis, to and from where Transposes bring them."""
    given, wanted = samples.tensors[data].shape or (), samples.graph[op.outputs[0]].static_shape or ()
    if axis:
        perm = (axis, *(other for other in range(len(given)) if other != axis))
        data = _insert_before(samples, Op("Transpose", (data,), (), {"perm": perm}, op.source), tuple(given[other] for other in perm))
    alone = (samples.new, *wanted[:to], *wanted[to + 1 :])
    sizes = samples.add_constant(op.inputs[1] if op.has(1) else data, np.array(alone, np.int64), None)
    if to == 0:
        return Op("Reshape", (data, sizes), op.outputs, op.attributes if op.kind == "Reshape" else {}, op.source)
    data = _insert_before(samples, Op("Reshape", (data, sizes), (), {}, op.source), alone)
    return Op("Transpose", (data,), op.outputs, {"perm": (*range(1, to + 1), 0, *range(to + 1, len(alone)))}, op.source)


def _insert_before(samples: Samples, op: Op, shape: Shape) -> str:
    """Adds an operator in front whose result has the samples first; the result's name is returned."""
    name = samples.new_tensor(op.inputs[0], shape, 0)
    samples.ops.append(replace(op, outputs=(name,)))
    return name


def _adapt_slice(samples: Samples, op: Op, axis: int) -> Op:
    """A Slice of all samples, whose end is their number."""
    starts, ends, axes = (samples.integers(name) for name in op.inputs[1:4])
    steps = samples.integers(op.inputs[4]) if op.has(4) else None
    rank = len(samples.graph[op.inputs[0]].shape or ())
    if starts is None or ends is None or axes is None:
        return op
    for index, item in enumerate(axes):
        is_whole = starts[index] == 0 and ends[index] == samples.graph[op.inputs[0]].shape[axis]  # type: ignore[index]
        if isinstance(item, int) and item % rank == axis and is_whole and (steps is None or steps[index] == 1):
            if any(isinstance(end, str) for end in ends):
                return op
            values = [_FAR if place == index else int(end) for place, end in enumerate(ends)]
            return samples.with_constant(op, 2, np.array(values, np.int64))
    return op


def _repeat_constants(samples: Samples, op: Op, axes: Mapping[int, int]) -> Op:
    """The operator with constants for one sample repeated for each."""
    for index, axis in axes.items():
        name = op.inputs[index] if op.has(index) else ""
        if not name or name in samples.places:
            continue
        tensor = samples.graph[name]
        if tensor.shape is None or axis >= len(tensor.shape) or not kind_of(op).samples.apart(op, index, axis, len(tensor.shape)):
            continue
        op = samples.with_repeated(op, index, axis)
    return op
