"""Slicing: SLICE, STRIDED_SLICE and REVERSE_V2 are one canonical operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op, integer_range

__all__ = ["READERS", "WRITERS"]

_FAR = int(np.iinfo(np.int64).max)
_FAR_BACK = int(np.iinfo(np.int64).min)


def _slice(r: Reading, bounds: list[tuple[int, int, int, int]], outputs: list[str] | None = None) -> list[str]:
    """Emits a Slice of (axis, start, end, step) rows."""
    columns = ([row[1] for row in bounds], [row[2] for row in bounds], [row[0] for row in bounds], [row[3] for row in bounds])
    names = [r.shape_const(column, hint) for column, hint in zip(columns, ("starts", "ends", "axes", "steps"), strict=True)]
    return r.emit("Slice", [r.input(0), *names], outputs)


def read_slice(r: Reading) -> None:
    """SLICE: (data, begin, size); a size of -1 means up to the end. Begins and sizes may be computed at run time."""
    if r.constant(1) is not None and r.constant(2) is not None:
        begins, sizes = r.ints(1), r.ints(2)
        if len(begins) != r.rank() or len(sizes) != r.rank() or min(begins, default=0) < 0:
            raise r.invalid(f"begin {begins} and size {sizes} for rank {r.rank()}")
        ends = [_FAR if size == -1 else begin + size for begin, size in zip(begins, sizes, strict=True)]
        _slice(r, [(axis, begins[axis], ends[axis], 1) for axis in range(r.rank())])
        return
    if r.constant(2) is not None and -1 in r.ints(2):
        raise r.unsupported("a size of -1 from a begin that is computed at run time")
    begin, size = r.int64(1), r.int64(2)
    ends_name = r.emit("Add", [begin, size], [r.intermediate("ends", "int64", (r.rank(),))])[0]
    axes = r.shape_const(range(r.rank()), "axes")
    r.emit("Slice", [r.input(0), begin, ends_name, axes])


def read_strided_slice(r: Reading) -> None:
    """STRIDED_SLICE with its five masks, by the rules of tf.strided_slice: a Slice, then removed and added axes."""
    begins, ends, steps = (r.ints(index) for index in (1, 2, 3))
    masks = {name: r.option(f"{name}Mask") for name in ("begin", "end", "ellipsis", "newAxis", "shrinkAxis")}
    if not len(begins) == len(ends) == len(steps) or 0 in steps:
        raise r.invalid(f"begin {begins}, end {ends} and strides {steps}")
    if bin(masks["ellipsis"]).count("1") > 1:
        raise r.invalid("two ellipses")
    offset = bool(r.option("offset", False))
    bounds: list[tuple[int, int, int, int]] = []
    shrunk: list[int] = []
    added: list[int] = []
    axis = position = 0
    consumed = sum(not (masks["newAxis"] | masks["ellipsis"]) >> i & 1 for i in range(len(begins)))
    for i in range(len(begins)):
        flag = 1 << i
        if masks["ellipsis"] & flag:
            skipped = r.rank() - consumed
            axis, position = axis + skipped, position + skipped
        elif masks["newAxis"] & flag:
            added.append(position)
            position += 1
        else:
            if axis >= r.rank():
                raise r.invalid("more indices than axes")
            end = begins[i] + ends[i] if offset else ends[i]
            if masks["shrinkAxis"] & flag:
                bounds.append((axis, begins[i], _FAR if begins[i] == -1 else begins[i] + 1, 1))
                shrunk.append(axis)
            else:
                begin = begins[i] if not masks["begin"] & flag else (0 if steps[i] > 0 else _FAR)
                end = end if not masks["end"] & flag else (_FAR if steps[i] > 0 else _FAR_BACK)
                bounds.append((axis, begin, end, steps[i]))
                position += 1
            axis += 1
    _sliced_and_reshaped(r, bounds, shrunk, added)


def _sliced_and_reshaped(r: Reading, bounds: list[tuple[int, int, int, int]], shrunk: list[int], added: list[int]) -> None:
    """The Slice of STRIDED_SLICE, then Squeeze and Unsqueeze where its masks ask for them."""
    data, result = r.tensor(), r.result()
    if not shrunk and not added:
        _slice(r, bounds)
        return
    kept = tuple(size for position, size in enumerate(result.shape or ()) if position not in added)
    full = list(kept)
    for axis in shrunk:
        full.insert(axis, 1)
    current = _slice(r, bounds, [r.like("sliced", data, tuple(full))])[0]
    if shrunk:
        outputs = [r.like("squeezed", data, kept)] if added else None
        current = r.emit("Squeeze", [current, r.shape_const(shrunk, "shrunk_axes")], outputs)[0]
    if added:
        r.emit("Unsqueeze", [current, r.shape_const(added, "new_axes")])


def read_reverse(r: Reading) -> None:
    """REVERSE_V2: a Slice with steps of -1."""
    axes = [r.axis(axis, r.rank()) for axis in r.ints(1)]
    count = len(axes)
    values = ([-1] * count, [int(np.iinfo(np.int64).min)] * count, axes, [-1] * count)
    names = [r.shape_const(value, hint) for value, hint in zip(values, ("starts", "ends", "axes", "steps"), strict=True)]
    r.emit("Slice", [r.input(0), *names])


READERS: dict[str, ReadFunction] = {
    "SLICE": read_slice,
    "STRIDED_SLICE": read_strided_slice,
    "REVERSE_V2": read_reverse,
}


@dataclass
class _Entries:
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
        masks = [
            name for name, bound, far in (("beginMask", begin, -step), ("endMask", end, step)) if bound == (_FAR if far > 0 else _FAR_BACK)
        ]
        low, high = integer_range("int32")
        self.add(
            0 if "beginMask" in masks else min(max(begin, low), high), 0 if "endMask" in masks else min(max(end, low), high), step, *masks
        )


def write_slice(op: Op, w: Writing) -> None:
    """Slice as REVERSE_V2, SLICE or STRIDED_SLICE; the last takes in the Squeeze and Unsqueeze that its masks stand for."""
    bounds = _bounds(op, w)
    if bounds is None:
        _write_computed(op, w)
        return
    from_strided = op.source.startswith("STRIDED_SLICE")
    axes = sorted(bounds)
    if axes and all(row == (-1, _FAR_BACK, -1) for row in bounds.values()) and axes[-1] - axes[0] < len(axes) and not from_strided:
        w.emit("REVERSE_V2", [op.inputs[0], w.ints(list(bounds), f"{op.outputs[0]}/axes")], op.outputs, "ReverseV2Options")
    elif not from_strided and _is_plain(op, w, bounds):
        begins, sizes = [row[0] for row in bounds.values()], [-1 if row[1] == _FAR else row[1] - row[0] for row in bounds.values()]
        operands = [op.inputs[0], w.ints(begins, f"{op.outputs[0]}/begin"), w.ints(sizes, f"{op.outputs[0]}/size")]
        w.emit("SLICE", operands, op.outputs, "SliceOptions")
    else:
        _write_strided(op, w, bounds)


def _bounds(op: Op, w: Writing) -> dict[int, tuple[int, int, int]] | None:
    """Start, end and step by axis; None if any is computed at run time."""
    if any(w.tensor(name).data is None for name in op.inputs[1:]):
        return None
    starts, ends, axes = (w.values(op, position) for position in (1, 2, 3))
    steps = w.values(op, 4) if len(op.inputs) > 4 and op.inputs[4] else [1] * len(starts)
    rows = zip(axes, starts, ends, steps, strict=True)
    return {w.axis(op, axis, op.inputs[0]): (start, end, step) for axis, start, end, step in rows}


def _is_plain(op: Op, w: Writing, bounds: dict[int, tuple[int, int, int]]) -> bool:
    """Whether SLICE says the same: every axis in order, from within to within, without steps."""
    shape = w.tensor(op.inputs[0]).shape or ()

    def fits(start: int, end: int, step: int, size: int | str) -> bool:
        known = size if isinstance(size, int) else end if op.source.startswith("SLICE") else -1
        return step == 1 and start >= 0 and (end == _FAR or start <= end <= known)

    rows = zip(bounds.values(), shape, strict=False)
    return bool(shape) and list(bounds) == list(range(len(shape))) and all(fits(*row, size) for row, size in rows)


def _write_strided(op: Op, w: Writing, bounds: dict[int, tuple[int, int, int]]) -> None:
    """STRIDED_SLICE of the axes in order; an ellipsis needs a newer version, so only what was read from one gets it back."""
    shrunk, added, outputs = _absorbed_axes(op, w, bounds)
    axes, entries, position = sorted(bounds), _Entries(), 0
    expected = 0
    for axis in axes:
        if axis > expected:
            gap = axis - expected
            rest = list(range(axis, w.tensor(op.inputs[0]).rank or 0))
            in_place = op.source.startswith("STRIDED_SLICE") and rest == [other for other in axes if other >= axis]
            if in_place and not added & set(range(position, position + gap)):
                entries.add(0, 0, 1, "ellipsisMask")
            else:
                for _ in range(gap):
                    entries.add_bounds(0, _FAR, 1)
            position += gap
        while position in added:
            entries.add(0, 0, 1, "newAxisMask")
            position += 1
        start, end, step = bounds[axis]
        if axis in shrunk:
            entries.add(start, start + 1, 1, "shrinkAxisMask")
        else:
            entries.add_bounds(start, end, step)
            position += 1
        expected = axis + 1
    while position in added:
        entries.add(0, 0, 1, "newAxisMask")
        position += 1
    columns = (("begin", entries.begins), ("end", entries.ends), ("strides", entries.steps))
    operands = [op.inputs[0], *(w.ints(column, f"{op.outputs[0]}/{hint}") for hint, column in columns)]
    w.emit("STRIDED_SLICE", operands, outputs, "StridedSliceOptions", **entries.masks)


def _absorbed_axes(op: Op, w: Writing, bounds: dict[int, tuple[int, int, int]]) -> tuple[set[int], set[int], tuple[str, ...]]:
    """The axes that a Squeeze behind takes away, those that an Unsqueeze behind it adds, and the outputs of the last of the three.

    Both are taken in where the reader made them of one operator.
    """
    shrunk: set[int] = set()
    added: set[int] = set()
    outputs = op.outputs
    for kind, hint in (("Squeeze", "sliced"), ("Unsqueeze", "squeezed")):
        reader = w.successor(outputs[0])
        if reader is None or reader.kind != kind or not w.is_inner(outputs[0], hint) or w.tensor(reader.inputs[1]).data is None:
            continue
        axes = {int(axis) for axis in w.values(reader, 1)}
        if min(axes, default=0) < 0:
            break
        if kind == "Squeeze":
            if not all(
                bounds.get(axis, (0, 0, 0))[1:] == (_after(bounds[axis][0]), 1) for axis in axes if axis in bounds
            ) or not axes <= set(bounds):
                break
            shrunk = axes
        else:
            added = axes
        w.absorb(reader)
        outputs = reader.outputs
    return shrunk, added, outputs


def _after(start: int) -> int:
    """The end of a slice of one element."""
    return _FAR if start == -1 else start + 1


def _write_computed(op: Op, w: Writing) -> None:
    """SLICE where the ends are begins plus sizes, else STRIDED_SLICE of the first axes."""
    rank = w.tensor(op.inputs[0]).rank
    axes = [w.axis(op, axis, op.inputs[0]) for axis in w.values(op, 3)]
    steps = w.values(op, 4) if len(op.inputs) > 4 and op.inputs[4] else [1] * len(axes)
    total = w.producer(op.inputs[2])
    is_sum = total is not None and total.kind == "Add" and total.inputs[0] == op.inputs[1] and w.successor(op.inputs[2]) is not None
    if total is not None and is_sum and axes == list(range(rank or 0)) and set(steps) <= {1}:
        sizes = w.index(total, 1, wide=True)
        w.retract(total)
        operands = [op.inputs[0], w.index(op, 1, wide=w.tensor(sizes).dtype == "int64"), sizes]
        w.emit("SLICE", operands, op.outputs, "SliceOptions")
        return
    if axes != list(range(len(axes))):
        raise w.unsupported(op, f"bounds that are computed at run time along the axes {axes}")
    names: list[str] = []
    masks: dict[str, Any] = {}
    for position, mask in ((1, "beginMask"), (2, "endMask")):
        data = w.tensor(op.inputs[position]).data
        if data is None:
            names.append(w.index(op, position))
            continue
        entries = _Entries()
        for bound, step in zip(data.reshape(-1).tolist(), steps, strict=True):
            entries.add_bounds(bound, bound, step)
        masks[mask] = entries.masks.get(mask, 0)
        names.append(w.ints(entries.begins if position == 1 else entries.ends, f"{op.outputs[0]}/{mask}"))
    w.emit("STRIDED_SLICE", [op.inputs[0], *names, w.ints(steps, f"{op.outputs[0]}/strides")], op.outputs, "StridedSliceOptions", **masks)


WRITERS: dict[str, WriteFunction] = {"Slice": write_slice}
