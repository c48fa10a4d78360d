"""Slicing: SLICE, STRIDED_SLICE and REVERSE_V2 are one canonical operator."""

from __future__ import annotations

from qconvert.formats.tflite.ops.computed_bounds import (
    FAR,
    FAR_BACK,
    Bound,
    Entries,
    bounds_of,
    emit_bounds,
    read_computed_slice,
    single_element_ends,
    write_computed_slice,
)
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op


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
