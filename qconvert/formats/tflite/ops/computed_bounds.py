"""Bounds of SLICE and STRIDED_SLICE, which may be computed at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.arithmetic.polynomials import number
from qconvert.formats.tflite.reading import Reading
from qconvert.formats.tflite.writing import Writing
from qconvert.graph import Op, integer_range

#: What runs to the end of an axis: a constant, and a number that is computed with, which has to fit TFLite's int32.
FAR = int(np.iinfo(np.int64).max)
FAR_BACK = int(np.iinfo(np.int64).min)
_FAR_COMPUTED = 2**31 - 1
_FAR_BACK_COMPUTED = -(2**31)

#: One bound: a number, or the element of a list that is computed at run time.
Bound = int | tuple[str, int]


def bounds_of(r: Reading, index: int) -> list[Bound]:
    """The elements of input `index`, numbers where they are known before the model runs."""
    forms = r.sizes_of(index)
    if forms is None:
        raise r.unsupported_error(f"input {r.input(index)!r} whose length is a dynamic dimension", rule="dynamic-dimension")
    name = "" if all(number(form) is not None for form in forms) else r.flat64(index)
    return [(name, i) if (value := number(form)) is None else value for i, form in enumerate(forms)]


def emit_bounds(r: Reading, bounds: Sequence[Bound], hint: str) -> str:
    """A list of int64 with these elements: a constant, a part of one list, or several joined."""
    parts: list[str] = []
    start = 0
    if not all(isinstance(bound, int) for bound in bounds):
        bounds = [min(max(bound, _FAR_BACK_COMPUTED), _FAR_COMPUTED) if isinstance(bound, int) else bound for bound in bounds]
    while start < len(bounds):
        first, end = bounds[start], start + 1
        if isinstance(first, int):
            while end < len(bounds) and isinstance(bounds[end], int):
                end += 1
            parts.append(r.list64([bound for bound in bounds[start:end] if isinstance(bound, int)], hint))
        else:
            while end < len(bounds) and bounds[end] == (first[0], first[1] + end - start):
                end += 1
            parts.append(_part(r, first, end - start, hint))
        start = end
    if len(parts) == 1:
        return parts[0]
    return r.emit("Concat", parts, [r.intermediate(hint, "int64", (len(bounds),))], axis=0)[0]


def _part(r: Reading, first: tuple[str, int], count: int, hint: str) -> str:
    """`count` elements of a list from one on."""
    name, at = first
    if at == 0 and r.lookup(name).shape == (count,):
        return name
    bounds = [r.list64([value], f"{hint}_{word}") for word, value in (("start", at), ("end", at + count), ("axis", 0))]
    return r.emit("Slice", [name, *bounds], [r.intermediate(f"{hint}_part", "int64", (count,))])[0]


def read_computed_slice(r: Reading) -> None:
    """SLICE: a size of -1 runs to the end; an axis of which all is kept is left out."""
    begins, sizes = bounds_of(r, 1), bounds_of(r, 2)
    if len(begins) != r.rank() or len(sizes) != r.rank():
        raise r.invalid(f"{len(begins)} begins and {len(sizes)} sizes for rank {r.rank()}", rule="counts-differ")
    axes = [axis for axis in range(r.rank()) if (begins[axis], sizes[axis]) != (0, -1)] or [0]
    begin = emit_bounds(r, [begins[axis] for axis in axes], "begin")
    if all((isinstance(sizes[axis], int) and isinstance(begins[axis], int)) or sizes[axis] == -1 for axis in axes):
        ends = emit_bounds(r, [_end(begins[axis], sizes[axis]) for axis in axes], "ends")
    else:
        size = emit_bounds(r, [sizes[axis] for axis in axes], "size")
        ends = r.emit("Add", [begin, size], [r.intermediate("ends", "int64", (len(axes),))])[0]
        if any(sizes[axis] == -1 for axis in axes):
            ends = _replace_far_ends(r, ends, [sizes[axis] == -1 for axis in axes])
    r.emit("Slice", [r.input(0), begin, ends, r.list64(axes, "axes")])


def _end(begin: Bound, size: Bound) -> int:
    return begin + size if isinstance(begin, int) and isinstance(size, int) and size != -1 else FAR


def _replace_far_ends(r: Reading, ends: str, far: Sequence[bool]) -> str:
    """Replace bounds by the end of the axis where `far` is true."""
    values = [r.const(np.array(far), "to_the_end"), r.const(np.array(_FAR_COMPUTED, np.int64), "far"), ends]
    return r.emit("Where", values, [r.intermediate("ends_or_far", "int64", (len(far),))])[0]


def single_element_ends(r: Reading, begins: Sequence[Bound], hint: str) -> list[Bound]:
    """The ends of slices of one element each: that after `begins`, and the far end after the last element, -1."""
    if all(isinstance(begin, int) for begin in begins):
        return [FAR if begin == -1 else begin + 1 for begin in begins if isinstance(begin, int)]
    name, shape = emit_bounds(r, begins, hint), (len(begins),)
    following = r.emit("Add", [name, r.list64([1], "one")], [r.intermediate(f"{hint}_after", "int64", shape)])[0]
    last = r.emit("Equal", [name, r.list64([-1], "last")], [r.intermediate(f"{hint}_last", "bool", shape)])[0]
    far = r.const(np.array(_FAR_COMPUTED, np.int64), "far")
    ends = r.emit("Where", [last, far, following], [r.intermediate(f"{hint}_ends", "int64", shape)])[0]
    return [(ends, i) for i in range(len(begins))]


@dataclass
class Entries:
    """The indices of a STRIDED_SLICE, one a position, and its masks."""

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    masks: dict[str, Any] = field(default_factory=dict)

    def add(self, begin: int, end: int, step: int, *masks: str) -> None:
        for name in masks:
            self.masks[name] = self.masks.get(name, 0) | 1 << len(self.begins)
        self.begins.append(begin)
        self.ends.append(end)
        self.steps.append(step)

    def add_bounds(self, begin: int, end: int, step: int) -> None:
        """Bounds at an end of the axis are masks; others are within int32 or mean the same as its limits."""
        sides, (low, high) = (("beginMask", begin, -step), ("endMask", end, step)), integer_range("int32")
        masks = [name for name, bound, far in sides if bound == (FAR if far > 0 else FAR_BACK)]
        first, last = (0 if name in masks else min(max(bound, low), high) for name, bound, _ in sides)
        self.add(first, last, step, *masks)


def write_computed_slice(op: Op, w: Writing) -> None:
    """Slice with computed bounds: SLICE if each end is a begin plus a size, else STRIDED_SLICE."""
    rank = w.operand(op).rank
    axes = [w.axis(op, axis) for axis in w.integers(op, 3)]
    steps = w.integers(op, 4) if op.has(4) else [1] * len(axes)
    total = w.producer(op.inputs[2], "Add")
    is_sum = total is not None and total.inputs[0] == op.inputs[1] and w.successor(op.inputs[2]) is not None
    if total is not None and is_sum and axes == list(range(rank or 0)) and set(steps) <= {1}:
        # Begins and sizes have one type: int64 only where both are computed so, as constants become int32.
        wide = all(w.tensor(name).data is None and w.tensor(name).dtype == "int64" for name in (op.inputs[1], total.inputs[1]))
        sizes = w.index(total, 1, wide=wide)
        w.retract(total)
        w.emit("SLICE", [op.inputs[0], w.index(op, 1, wide=wide), sizes], op.outputs)
        return
    (begins, first), (ends, last) = (_write_bounds(op, w, position, axes, steps) for position in (1, 2))
    strides = [steps[axes.index(axis)] if axis in axes else 1 for axis in range(max(axes, default=-1) + 1)]
    operands = [op.inputs[0], begins, ends, w.ints(strides, f"{op.outputs[0]}/strides")]
    w.emit("STRIDED_SLICE", operands, op.outputs, beginMask=first, endMask=last)


def _clamp_to_int32(op: Op, w: Writing, position: int) -> str:
    """Input `position` as int32; those of int64 that stand for the end of an axis become the largest that int32 has."""
    name = op.inputs[position]
    tensor = w.tensor(name)
    if tensor.dtype != "int64" or w.producer(name, "Cast") is not None:
        return w.index(op, position)
    for builtin, limit in (("MINIMUM", _FAR_COMPUTED), ("MAXIMUM", _FAR_BACK_COMPUTED)):
        bounded = w.add(f"{op.inputs[position]}/bounded", "int64", tensor.shape)
        w.emit(builtin, [name, w.const(np.array(limit, np.int64), f"{bounded}_by")], [bounded])
        name = bounded
    return w.cast(name)


def _write_bounds(op: Op, w: Writing, position: int, axes: Sequence[int], steps: Sequence[int]) -> tuple[str, int]:
    """Begins or ends of every axis up to the last of `axes`, and the mask of those that do not count."""
    data, every = w.operand(op, position).data, range(max(axes, default=-1) + 1)
    hint = f"{op.outputs[0]}/{'begin' if position == 1 else 'end'}"
    if data is not None:
        entries, values = Entries(), data.reshape(-1).tolist()
        for axis in every:
            bound, step = (values[axes.index(axis)], steps[axes.index(axis)]) if axis in axes else (0 if position == 1 else FAR, 1)
            entries.add_bounds(bound, bound, step)
        bounds, mask = (entries.begins, "beginMask") if position == 1 else (entries.ends, "endMask")
        return w.ints(bounds, hint), int(entries.masks.get(mask, 0))
    name = _clamp_to_int32(op, w, position)
    if list(axes) == list(every):
        return name, 0
    with_zero = w.add(f"{hint}/with_zero", "int32", (1 + len(axes),))
    w.emit("CONCATENATION", [w.ints([0], f"{hint}/zero"), name], [with_zero], axis=0)
    spread = w.add(hint, "int32", (len(every),))
    places = w.ints([1 + axes.index(axis) if axis in axes else 0 for axis in every], f"{hint}/places")
    w.emit("GATHER", [with_zero, places], [spread])
    return spread, sum(1 << axis for axis in every if axis not in axes)
