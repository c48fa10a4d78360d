"""Slicing: SLICE, STRIDED_SLICE and REVERSE_V2 are one canonical operator; bounds may be computed at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.arithmetic.polynomials import number
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
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
    return r.emit_new("Concat", parts, hint, "int64", (len(bounds),), axis=0)


def _part(r: Reading, first: tuple[str, int], count: int, hint: str) -> str:
    """`count` elements of a list from one on."""
    name, at = first
    if at == 0 and r.lookup(name).shape == (count,):
        return name
    bounds = [r.list64([value], f"{hint}_{word}") for word, value in (("start", at), ("end", at + count), ("axis", 0))]
    return r.emit_new("Slice", [name, *bounds], f"{hint}_part", "int64", (count,))


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
        ends = r.emit_new("Add", [begin, size], "ends", "int64", (len(axes),))
        if any(sizes[axis] == -1 for axis in axes):
            ends = _replace_far_ends(r, ends, [sizes[axis] == -1 for axis in axes])
    r.emit("Slice", [r.input(0), begin, ends, r.list64(axes, "axes")])


def _end(begin: Bound, size: Bound) -> int:
    return begin + size if isinstance(begin, int) and isinstance(size, int) and size != -1 else FAR


def _replace_far_ends(r: Reading, ends: str, far: Sequence[bool]) -> str:
    """Replace bounds by the end of the axis where `far` is true."""
    values = [r.const(np.array(far), "to_the_end"), r.const(np.array(_FAR_COMPUTED, np.int64), "far"), ends]
    return r.emit_new("Where", values, "ends_or_far", "int64", (len(far),))


def single_element_ends(r: Reading, begins: Sequence[Bound], hint: str) -> list[Bound]:
    """The ends of slices of one element each: that after `begins`, and the far end after the last element, -1."""
    if all(isinstance(begin, int) for begin in begins):
        return [FAR if begin == -1 else begin + 1 for begin in begins if isinstance(begin, int)]
    name, shape = emit_bounds(r, begins, hint), (len(begins),)
    following = r.emit_new("Add", [name, r.list64([1], "one")], f"{hint}_after", "int64", shape)
    last = r.emit_new("Equal", [name, r.list64([-1], "last")], f"{hint}_last", "bool", shape)
    far = r.const(np.array(_FAR_COMPUTED, np.int64), "far")
    ends = r.emit_new("Where", [last, far, following], f"{hint}_ends", "int64", shape)
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


def _slice(r: Reading, bounds: list[tuple[int, Bound, Bound, int]], outputs: list[str] | None = None) -> list[str]:
    """Emits a Slice of (axis, start, end, step) rows."""
    starts, ends = (emit_bounds(r, [row[place] for row in bounds], hint) for place, hint in ((1, "starts"), (2, "ends")))
    axes, steps = r.list64([row[0] for row in bounds], "axes"), r.list64([row[3] for row in bounds], "steps")
    return r.emit("Slice", [r.input(0), starts, ends, axes, steps], outputs)


def read_slice(r: Reading) -> None:
    """SLICE: (data, begin, size); a size of -1 means up to the end. Begins and sizes may be computed at run time."""
    begins, sizes = r.known_ints(1), r.known_ints(2)
    if begins is not None and sizes is not None:
        if len(begins) != r.rank() or len(sizes) != r.rank() or min(begins, default=0) < 0:
            raise r.invalid(f"begin {begins} and size {sizes} for rank {r.rank()}", rule="counts-differ")
        ends = [FAR if size == -1 else begin + size for begin, size in zip(begins, sizes, strict=True)]
        _slice(r, [(axis, begins[axis], ends[axis], 1) for axis in range(r.rank())])
        return
    read_computed_slice(r)


def read_strided_slice(r: Reading) -> None:
    """STRIDED_SLICE with its five masks, by the rules of tf.strided_slice: a Slice, then removed and added axes."""
    begins, ends, steps = bounds_of(r, 1), bounds_of(r, 2), r.ints(3)
    masks = {name: r.option(f"{name}Mask") for name in ("begin", "end", "ellipsis", "newAxis", "shrinkAxis")}
    if not len(begins) == len(ends) == len(steps) or 0 in steps:
        raise r.invalid(f"begin {begins}, end {ends} and strides {steps}", rule="counts-differ")
    if bin(masks["ellipsis"]).count("1") > 1:
        raise r.invalid("two ellipses", rule="two-ellipses")
    offset = bool(r.option("offset", False))
    bounds: list[tuple[int, Bound, Bound, int]] = []
    shrunk: list[int] = []
    added: list[int] = []
    indices = masks["shrinkAxis"] & ~(masks["newAxis"] | masks["ellipsis"])
    single = single_element_ends(r, [begin for i, begin in enumerate(begins) if indices >> i & 1], "index")
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
                raise r.invalid("more indices than axes", rule="too-many-indices")
            if masks["shrinkAxis"] & flag:
                bounds.append((axis, begins[i], single[len(shrunk)], 1))
                shrunk.append(axis)
            else:
                begin = begins[i] if not masks["begin"] & flag else (0 if steps[i] > 0 else FAR)
                end = _offset(r, begins[i], ends[i]) if offset else ends[i]
                end = end if not masks["end"] & flag else (FAR if steps[i] > 0 else FAR_BACK)
                bounds.append((axis, begin, end, steps[i]))
                position += 1
            axis += 1
    _emit_strided_slice(r, bounds, shrunk, added)


def _offset(r: Reading, begin: Bound, end: Bound) -> Bound:
    """An end that is counted from the begin."""
    if isinstance(begin, int) and isinstance(end, int):
        return begin + end
    raise r.unsupported_error("an end relative to a begin that is computed at run time", rule="not-constant")


def _emit_strided_slice(r: Reading, bounds: list[tuple[int, Bound, Bound, int]], shrunk: list[int], added: list[int]) -> None:
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
        current = r.emit("Squeeze", [current, r.list64(shrunk, "shrunk_axes")], outputs)[0]
    if added:
        r.emit("Unsqueeze", [current, r.list64(added, "new_axes")])


def read_reverse(r: Reading) -> None:
    """REVERSE_V2: a Slice with steps of -1."""
    _slice(r, [(r.axis(axis, r.rank()), -1, FAR_BACK, -1) for axis in r.ints(1)])


READERS: Readers = {
    "SLICE": read_slice,
    "STRIDED_SLICE": read_strided_slice,
    "REVERSE_V2": read_reverse,
}


def write_slice(op: Op, w: Writing) -> None:
    """Slice as REVERSE_V2, SLICE or STRIDED_SLICE; the last takes in the Squeeze and Unsqueeze that its masks stand for."""
    bounds = _bounds(op, w)
    if bounds is None:
        write_computed_slice(op, w)
        return
    from_strided = op.source.startswith("STRIDED_SLICE")
    axes = sorted(bounds)
    if axes and all(row == (-1, FAR_BACK, -1) for row in bounds.values()) and axes[-1] - axes[0] < len(axes) and not from_strided:
        w.emit("REVERSE_V2", [op.inputs[0], w.ints(list(bounds), f"{op.outputs[0]}/axes")], op.outputs)
    elif not from_strided and _is_plain(op, w, bounds):
        begins, sizes = [row[0] for row in bounds.values()], [-1 if row[1] == FAR else row[1] - row[0] for row in bounds.values()]
        operands = [op.inputs[0], w.ints(begins, f"{op.outputs[0]}/begin"), w.ints(sizes, f"{op.outputs[0]}/size")]
        w.emit("SLICE", operands, op.outputs)
    else:
        _write_strided(op, w, bounds)


def _bounds(op: Op, w: Writing) -> dict[int, tuple[int, int, int]] | None:
    """Start, end and step by axis; None if any is computed at run time."""
    if any(w.tensor(name).data is None for name in op.inputs[1:]):
        return None
    starts, ends, axes = (w.integers(op, position) for position in (1, 2, 3))
    steps = w.integers(op, 4) if op.has(4) else [1] * len(starts)
    rows = zip(axes, starts, ends, steps, strict=True)
    return {w.axis(op, axis): (start, end, step) for axis, start, end, step in rows}


def _is_plain(op: Op, w: Writing, bounds: dict[int, tuple[int, int, int]]) -> bool:
    """Whether SLICE says the same: every axis in order, from within to within, without steps."""
    shape = w.operand(op).shape or ()

    def fits(start: int, end: int, step: int, size: int | str) -> bool:
        known = size if isinstance(size, int) else end if op.source.startswith("SLICE") else -1
        return step == 1 and start >= 0 and (end == FAR or start <= end <= known)

    rows = zip(bounds.values(), shape, strict=False)
    return bool(shape) and list(bounds) == list(range(len(shape))) and all(fits(*row, size) for row, size in rows)


def _write_strided(op: Op, w: Writing, bounds: dict[int, tuple[int, int, int]]) -> None:
    """STRIDED_SLICE of the axes in order; an ellipsis needs a newer version, so only what was read from one gets it back."""
    shrunk, added, outputs = _absorbed_axes(op, w, bounds)
    axes, entries, position = sorted(bounds), Entries(), 0
    expected = 0
    for axis in axes:
        if axis > expected:
            gap = axis - expected
            rest = list(range(axis, w.operand(op).rank or 0))
            in_place = op.source.startswith("STRIDED_SLICE") and rest == [other for other in axes if other >= axis]
            if in_place and not added & set(range(position, position + gap)):
                entries.add(0, 0, 1, "ellipsisMask")
            else:
                for _ in range(gap):
                    entries.add_bounds(0, FAR, 1)
            position += gap
        while position in added:
            entries.add(0, 0, 1, "newAxisMask")
            position += 1
        start, end, step = bounds[axis]
        if axis in shrunk:
            entries.add(start, start + 1, 1, "shrinkAxisMask")
        elif end == 0 and step > 0 and not op.source.startswith("STRIDED_SLICE"):
            entries.add_bounds(1, 1, step)  # no element either; see limits.empty_slice()
            position += 1
        else:
            entries.add_bounds(start, end, step)
            position += 1
        expected = axis + 1
    if not added:  # tflite-micro reads an entry for every axis, whether it is there or not (strided_slice_common.cc)
        for _ in range((w.operand(op).rank or 0) - expected):
            entries.add_bounds(0, FAR, 1)
    while position in added:
        entries.add(0, 0, 1, "newAxisMask")
        position += 1
    columns = zip((entries.begins, entries.ends, entries.steps), ("begin", "end", "strides"), strict=True)
    operands = [op.inputs[0], *(w.ints(column, f"{op.outputs[0]}/{hint}") for column, hint in columns)]
    w.emit("STRIDED_SLICE", operands, outputs, **entries.masks)


def _absorbed_axes(op: Op, w: Writing, bounds: dict[int, tuple[int, int, int]]) -> tuple[set[int], set[int], tuple[str, ...]]:
    """The axes that a Squeeze after takes away, those that an Unsqueeze after it adds, and the outputs of the last of the three.

    Both are taken in where the reader made them of one operator.
    """
    shrunk: set[int] = set()
    added: set[int] = set()
    outputs = op.outputs
    single = {axis for axis, (start, end, step) in bounds.items() if (end, step) == (FAR if start == -1 else start + 1, 1)}
    for kind, hint in (("Squeeze", "sliced"), ("Unsqueeze", "squeezed")):
        reader = w.successor(outputs[0], kind)
        if reader is None or not w.is_inner(outputs[0], hint) or w.operand(reader, 1).data is None:
            continue
        axes = {*w.integers(reader, 1)}
        if min(axes, default=0) < 0 or (kind == "Squeeze" and not axes <= single):
            break
        if kind == "Squeeze":
            shrunk = axes
        else:
            added = axes
        w.absorb(reader)
        outputs = reader.outputs
    return shrunk, added, outputs


WRITERS: Writers = {"Slice": write_slice}
