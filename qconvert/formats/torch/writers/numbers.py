"""Sizes, which are constants or known of tensors before their values are; bits, diagonals, gaps, ranges and other functions of plain
numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.errors import UnsupportedError
from qconvert.formats.torch.writing import Builder, WriteFunction, along_axis, with_note
from qconvert.graph import Op, numpy_dtype


def write_bit_shift(op: Op, b: Builder) -> None:
    """BitShift: by all bits or more gives 0 to the left, and what all bits but one give to the right."""
    data, by = b.stored_values(op)
    bits = 8 * numpy_dtype(b.operand(op).dtype).itemsize
    inside = b.aten("clamp", by, 0, bits - 1)
    node = b.aten("bitwise_right_shift.Tensor" if op["direction"] == "RIGHT" else "bitwise_left_shift.Tensor", data, inside)
    if op["direction"] != "RIGHT":
        node = b.aten("where.self", b.aten("eq.Tensor", inside, by), node, b.aten("zeros_like", node))
    b.store(op, node)


def write_bitcast(op: Op, b: Builder) -> None:
    """Bitcast: the same bytes, with a last axis more or less where the types differ in size."""
    node, ratio, dtype = b.stored_input(op), op["ratio"], b.dtype(op["to"])
    node = b.aten("unsqueeze", node, -1) if ratio > 1 else node
    node = b.aten("view.dtype", b.aten("clone", node), dtype)
    b.store(op, b.aten("squeeze.dim", node, -1) if ratio < 0 else node)


def write_range(op: Op, b: Builder) -> None:
    """Range of known ends, or of whole numbers that sizes of the run time give."""
    if b.result(op).static_shape is None and "int" in b.result(op).dtype:
        start, end, step = (sizes_of(b, name)[0] for name in op.inputs)
        b.store(op, b.aten("arange.start_step", start, end, step, dtype=b.dtype(b.result(op).dtype)))
        return
    ends = [b.graph.constant(name) for name in op.inputs]
    if any(end is None for end in ends):
        raise b.unsupported_error(op, "numbers that are computed at run time", rule="not-constant")
    start, _, step = (np.reshape(end, ()) for end in ends if end is not None)
    (count,), dtype = b.static_shape(op, op.outputs[0]), numpy_dtype(b.result(op).dtype)
    start = start.astype(np.float64) if dtype.kind == "f" else start
    known = np.asarray(start + np.arange(count) * step, dtype)
    b.store(op, b.aten("alias", b.buffer(known, f"{op.outputs[0]}/known")))


_ARITHMETIC = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": operator.floordiv, "FloorDiv": operator.floordiv}


def sizes_of(b: Builder, name: str) -> list[Any]:
    """A list of sizes: numbers, and nodes for those that are known only at run time.

    Raises:
        UnsupportedError: they are computed from the values of tensors.
    """
    data = b.graph.constant(name)
    if data is not None:
        return [int(value) for value in np.asarray(data).reshape(-1)]
    maker = b.producer(name, *_FOLLOWED)
    if maker is None:
        raise UnsupportedError(
            "sizes that are computed from the values of tensors cannot be written for PyTorch",
            where=f"tensor {name!r}",
            rule="not-constant",
        )
    found: list[Any] = _FOLLOWED[maker.kind](maker, b)
    return found


def defer_sizes(write: WriteFunction) -> WriteFunction:
    """The write function of a kind that may also compute dynamic sizes; these get a tensor only when one is read."""

    def write_or_defer(op: Op, b: Builder) -> None:
        operands = op.inputs if op.kind in _OF_SEVERAL else op.inputs[:1]
        if b.deferred.isdisjoint(operands):
            write(op, b)
        else:
            b.deferred.update(op.outputs)

    return write_or_defer


def _shape(op: Op, b: Builder) -> list[Any]:
    return [b.size_at(op, axis) for axis in range(b.rank(op))]


def _concat_sizes(op: Op, b: Builder) -> list[Any]:
    return [size for name in op.inputs for size in sizes_of(b, name)]


def _compute_sizes(op: Op, b: Builder) -> list[Any]:
    left, right = (sizes_of(b, name) for name in op.inputs)
    count = max(len(left), len(right))
    pairs = zip(left * (count if len(left) == 1 else 1), right * (count if len(right) == 1 else 1), strict=True)
    function = _ARITHMETIC[op.kind]
    return [
        function(one, other) if isinstance(one, int) and isinstance(other, int) else b.call(f"operator.{function.__name__}", one, other)
        for one, other in pairs
    ]


_FOLLOWED: Mapping[str, Any] = {
    "Shape": _shape,
    "Concat": _concat_sizes,
    "Pack": _concat_sizes,
    "Slice": lambda op, b: sizes_of(b, op.inputs[0])[slice(*(b.integers(op, index)[0] for index in (1, 2, 4) if op.has(index)))],
    "Gather": lambda op, b: [sizes_of(b, op.inputs[0])[index] for index in b.integers(op, 1)],
    **dict.fromkeys(("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"), lambda op, b: sizes_of(b, op.inputs[0])),
    **dict.fromkeys(_ARITHMETIC, _compute_sizes),
}


def write_trilu(op: Op, b: Builder) -> None:
    """Trilu from a known diagonal on; the formula needs sizes that are known."""
    first = b.integers(op, 1)[0] if op.has(1) else 0
    b.store(op, b.aten("triu" if op["upper"] else "tril", b.stored_input(op), first))


def write_interior_pad(op: Op, b: Builder) -> None:
    """InteriorPad: the elements that are left are put at their places among fillers."""
    before, after = b.static_shape(op), b.static_shape(op, op.outputs[0])
    whole = b.aten("clone", b.aten("expand", b.aten("reshape", b.stored_input(op, 1), [1] * len(after)), list(after)))
    node, places = b.stored_input(op), []
    for axis, (size, wanted) in enumerate(zip(before, after, strict=True)):
        at = op["low"][axis] + np.arange(size) * (op["interior"][axis] + 1)
        kept = np.flatnonzero((at >= 0) & (at < wanted))
        if len(kept) < size:
            node = b.aten("index_select", node, axis, b.buffer(kept, f"{op.outputs[0]}/kept"))
        places.append(b.buffer(along_axis(at[kept], axis, len(after)), f"{op.outputs[0]}/places"))
    b.store(op, b.aten("index_put", whole, places, node))


def write_shape(op: Op, b: Builder) -> None:
    """Shape: a number where it is known; sizes of the run time have no tensor unless something computes with them."""
    shape = b.shape(op)
    if any(isinstance(size, str) for size in shape):
        b.deferred.add(op.outputs[0])
        b.sizes_of = sizes_of
    else:
        dtype = b.result(op).dtype
        b.store(op, b.aten("alias", b.buffer(np.array(_shape(op, b), dtype), f"{op.outputs[0]}/sizes")))


#: Kinds whose inputs are all data; the first is that of the others.
_OF_SEVERAL = frozenset(("Concat", "Pack", *_ARITHMETIC))
FOLLOWED = frozenset(_FOLLOWED) - {"Shape"}


#: All of them but sizes are recognized by notes alone.
WRITERS: Mapping[str, WriteFunction] = {"Shape": write_shape} | {
    kind: with_note(write)
    for kind, write in {
        "BitShift": write_bit_shift,
        "Bitcast": write_bitcast,
        "Range": write_range,
        "Trilu": write_trilu,
        "MatrixDiag": lambda op, b: b.store(op, b.aten("diag_embed", b.stored_input(op))),
        "MatrixSetDiag": lambda op, b: b.store(op, b.aten("diagonal_scatter", *b.stored_values(op), 0, -2, -1)),
        "InteriorPad": write_interior_pad,
    }.items()
}
