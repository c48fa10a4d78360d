"""What a shape rule sees of the graph, and the arithmetic of sizes that may be dynamic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from qconvert.errors import InvalidGraphError
from qconvert.graph.schema import Op, Shape, Tensor

__all__ = [
    "MAX_RANK",
    "UNKNOWN",
    "Known",
    "Result",
    "Rule",
    "ShapeContext",
    "Size",
    "broadcast",
    "failure",
    "normalize_axes",
    "unify_sizes",
]

Size = int | str
Result = list[Shape | None]
#: What is known of the integers of a tensor that is computed at run time: numbers, names of sizes, UNKNOWN; None if nothing is.
Known = Callable[[str], Sequence[Size] | None]

#: A size that a rule knows nothing of. infer() names it after its tensor and axis.
UNKNOWN = "?"
MAX_RANK = 64

#: Elements that a constant may have where it stands for a shape, axes, pads or sizes.
_MOST_INTEGERS = 2**16


def failure(op: Op, reason: str, *, rule: str) -> InvalidGraphError:
    """The error for inputs or attributes that contradict each other."""
    return InvalidGraphError(reason, where=f"{op.source} {op}".strip(), rule=rule)


class ShapeContext:
    """The inputs of one operator as its shape rule sees them."""

    def __init__(self, tensors: Mapping[str, Tensor], op: Op, known: Known | None = None) -> None:
        self._tensors = tensors
        self._op = op
        self._known = known

    def has(self, index: int) -> bool:
        """Whether input `index` is there."""
        return self._op.has(index)

    def shape(self, index: int) -> Shape | None:
        """The shape of input `index`; None if its rank is not known."""
        return self._tensors[self._op.inputs[index]].shape

    def constant(self, index: int) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
        """The data of input `index`; None if it is absent or computed at run time."""
        return self._tensors[self._op.inputs[index]].data if self.has(index) else None

    def ints(self, index: int) -> list[int] | None:
        """The integers of constant input `index`; None if it is absent or computed at run time."""
        data = self.constant(index)
        name = self._op.inputs[index] if self.has(index) else ""
        if data is None:
            found = self._known(name) if self._known is not None and name else None
            return None if found is None or not all(isinstance(size, int) for size in found) else [int(size) for size in found]
        if data.dtype.kind not in "iu" or data.ndim > 1:
            raise failure(self._op, f"input {name!r} of {data.dtype} and rank {data.ndim} is not a vector of integers", rule="not-integers")
        if data.size > _MOST_INTEGERS:
            raise failure(self._op, f"input {name!r} has {data.size} elements, more than any shape needs", rule="too-many-elements")
        return [int(value) for value in data.reshape(-1)]

    def sizes(self, index: int, count: int) -> list[Size]:
        """The `count` integers of input `index`, UNKNOWN where one is computed at run time.

        Raises:
            InvalidGraphError: it is computed, and its own shape is not that of so many integers.
        """
        known = self.ints(index)
        shape = self.shape(index) if known is None and self.has(index) else None
        if shape is not None and (len(shape) > 1 or (all(isinstance(size, int) for size in shape) and math.prod(map(int, shape)) != count)):
            raise failure(self._op, f"input {self._op.inputs[index]!r} of shape {shape} are not {count} integers", rule="counts-differ")
        found = self.unknowns(index) if known is None and self.has(index) else known
        return [UNKNOWN] * count if found is None or (known is None and len(found) != count) else list(found)

    def unknowns(self, index: int) -> Shape | None:
        """The shape that input `index`, computed at run time, will describe: its length is the rank."""
        shape = self.shape(index)
        if shape is None or len(shape) != 1 or isinstance(shape[0], str):
            return None
        if shape[0] > MAX_RANK:
            raise failure(self._op, f"input {self._op.inputs[index]!r} describes a shape of rank {shape[0]}", rule="rank-too-large")
        found = self._known(self._op.inputs[index]) if self._known is not None else None
        return (UNKNOWN,) * shape[0] if found is None else tuple(found)


Rule = Callable[[Op, ShapeContext], Result]


def normalize_axes(op: Op, axes: Iterable[int], rank: int) -> list[int]:
    """Possibly negative axes as ones from 0 to rank - 1, each once."""
    found = list(axes)
    for axis in found:
        if not -rank <= axis < rank:
            raise failure(op, f"axis {axis} is outside rank {rank}", rule="axis-out-of-range")
    result = [axis % rank for axis in found]
    if len(set(result)) != len(result):
        raise failure(op, f"axes {found} name an axis twice", rule="duplicate-axis")
    return result


def unify_sizes(op: Op, sizes: Sequence[Size], what: str) -> Size:
    """The one size that all must be: a number if any is one, else their common name, else UNKNOWN."""
    numbers = {size for size in sizes if isinstance(size, int)}
    if len(numbers) > 1:
        raise failure(op, f"{what} differ: {', '.join(map(str, sizes))}", rule="sizes-differ")
    if numbers:
        return numbers.pop()
    return sizes[0] if len(set(sizes)) == 1 else UNKNOWN


def broadcast(op: Op, shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape that all broadcast to, by the rule of numpy and ONNX.

    A name next to a number other than 1 must be that number or 1, so the result is the number.
    """
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    rank = max(map(len, known), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    result: list[Size] = []
    for sizes in zip(*padded, strict=True):
        wide = {size for size in sizes if size != 1}
        numbers = {size for size in wide if isinstance(size, int)}
        if len(numbers) > 1:
            raise failure(op, f"shapes {' and '.join(map(str, known))} do not broadcast", rule="not-broadcastable")
        result.append(numbers.pop() if numbers else 1 if not wide else wide.pop() if len(wide) == 1 else UNKNOWN)
    return tuple(result)
