"""Tensors as blobs: without the batch dimension, which is 1, and with names without blanks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from qconvert.plugin import Graph, Names, Op, OptionError, Tensor, UnsupportedError, parse_input_shapes

#: Dimensions that blobs may have.
_MOST = 4
_LONGEST = 200
_REMEDY = "Set the number of samples with --batch 1, and dynamic dimensions with --input-shape."


def unsupported_error(op: Op, what: str, *, rule: str = "variant-not-writable") -> UnsupportedError:
    """Return the error for an operator that has a layer in ncnn, but not in this variant."""
    return UnsupportedError(f"{op.kind} {what} cannot be written to ncnn", where=f"{op.source} {op.outputs[0]!r}".strip(), rule=rule)


def sizes_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor's blob, the outermost first.

    Raises:
        UnsupportedError: it has several samples, more dimensions than blobs have, or dynamic dimensions.
    """
    shape = tensor.static_shape
    if shape is None or not 1 < len(shape) <= _MOST + 1 or shape[0] != 1 or 0 in shape:
        raise UnsupportedError(
            f"the shape of the tensor is {tensor.shape}; ncnn requires one sample and 1 to {_MOST} further static sizes",
            where=repr(tensor.name),
            remedy=_REMEDY,
            rule="shape-not-writable",
        )
    return shape[1:]


def axis_of(graph: Graph, op: Op, axis: int) -> int:
    """Return the axis of the blob for an axis of an operator's data. Raise UnsupportedError for the batch axis."""
    rank = len(sizes_of(graph[op.inputs[0]])) + 1
    found = axis % rank
    if not found:
        raise unsupported_error(op, "along the samples", rule="several-samples")
    return found - 1


def order_of(perm: Sequence[int]) -> int:
    """Return the order_type of a Permute (src/layer/permute.cpp) for a permutation of a blob's axes, the outermost first."""
    return [*itertools.permutations(range(len(perm)))].index(tuple(perm))


def perm_of(order: int, rank: int) -> tuple[int, ...]:
    """Return the permutation of an order_type, the inverse of order_of(). Raise IndexError for unknown ones."""
    return [*itertools.permutations(range(rank))][order]


def parse_sizes(text: str, inputs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse --input-shape, by the names of inputs.

    Raises:
        OptionError: it is no such text, names no input, or is not for one sample and static sizes.
    """
    found: dict[str, tuple[int, ...]] = {}
    for name, (shape, _) in parse_input_shapes(text, inputs).items():
        sizes = tuple(size for size in shape if isinstance(size, int) and 0 < size < 2**31)
        if len(sizes) != len(shape) or not 1 < len(sizes) <= _MOST + 1:
            raise OptionError(f"--input-shape {shape} is not a list of positive sizes", remedy="Write 1,3,224,224.", rule="malformed-shape")
        if sizes[0] != 1:
            reason = f"--input-shape has {sizes[0]} samples; ncnn requires 1"
            raise OptionError(reason, remedy="Write 1 as the first size.", rule="several-samples")
        found[str(name)] = sizes
    return found


class Blobs:
    """Names of blobs and layers: the tensor's name, with blanks replaced."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._taken: set[str] = set()
        self._names = Names(self._taken)

    def name(self, tensor: str) -> str:
        """Return the blob of a tensor."""
        if tensor not in self._known:
            self._known[tensor] = self.fresh(tensor)
        return self._known[tensor]

    def fresh(self, wanted: str) -> str:
        """Return a name that no other blob has."""
        word = "".join("_" if char.isspace() or not char.isprintable() else char for char in wanted)
        found = self._names.fresh(word.encode()[:_LONGEST].decode(errors="ignore") or "blob")
        self._taken.add(found)
        return found
