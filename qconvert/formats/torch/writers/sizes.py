"""Sizes: lists of whole numbers that are constants, or known of tensors before their values are."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.errors import UnsupportedError
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Op

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


def _slice_sizes(op: Op, b: Builder) -> list[Any]:
    steps = b.integers(op, 4) if op.has(4) else [1]
    return sizes_of(b, op.inputs[0])[slice(b.integers(op, 1)[0], b.integers(op, 2)[0], steps[0])]


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
    "Slice": _slice_sizes,
    "Gather": lambda op, b: [sizes_of(b, op.inputs[0])[index] for index in b.integers(op, 1)],
    **dict.fromkeys(("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"), lambda op, b: sizes_of(b, op.inputs[0])),
    **dict.fromkeys(_ARITHMETIC, _compute_sizes),
}


def write_shape(op: Op, b: Builder) -> None:
    """Shape: a number where it is known; sizes of the run time have no tensor unless something computes with them."""
    shape = b.shape(op)
    if any(isinstance(size, str) for size in shape):
        b.deferred.add(op.outputs[0])
        b.sizes_of = sizes_of
    else:
        dtype = b.output_tensor(op).dtype
        b.store(op, b.aten("alias", b.buffer(np.array(_shape(op, b), dtype), f"{op.outputs[0]}/sizes")))


WRITERS: Mapping[str, WriteFunction] = {"Shape": write_shape}
#: Kinds whose inputs are all data; the first is that of the others.
_OF_SEVERAL = frozenset(("Concat", "Pack", *_ARITHMETIC))
FOLLOWED = frozenset(_FOLLOWED) - {"Shape"}
