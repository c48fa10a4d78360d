"""What read functions of every format see alike of the operator that they read: inputs, axes, constants and errors."""

from __future__ import annotations

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.evaluate.polynomials import number
from qconvert.formats.reading.draft import Draft
from qconvert.graph import Array, Quantization, Tensor

__all__ = ["OperatorReading"]


class OperatorReading:
    """One operator of a file that is being read.

    Attributes:
        source: its type with its name or position, for messages.
        inputs: names of its inputs; "" for an absent one.
        outputs: names of its outputs.
    """

    def __init__(self, draft: Draft, kind: str, source: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self._draft = draft
        self._kind = kind
        self.source = source
        self.inputs = inputs
        self.outputs = outputs

    def has(self, index: int) -> bool:
        """Whether input `index` is there."""
        return index < len(self.inputs) and bool(self.inputs[index])

    def input(self, index: int) -> str:
        """The name of input `index`; raises InvalidModelError if it is absent."""
        if not self.has(index):
            raise self.invalid(f"input {index} is missing", rule="input-missing")
        return self.inputs[index]

    def tensor(self, index: int = 0) -> Tensor:
        """The canonical tensor of input `index`."""
        return self._draft.tensors[self.input(index)]

    def lookup(self, name: str) -> Tensor:
        """The canonical tensor called `name`."""
        return self._draft.tensors[name]

    def axis(self, value: int, rank: int) -> int:
        """A possibly negative axis as one from 0 to rank - 1."""
        if not -rank <= value < rank:
            raise self.invalid(f"axis {value} is outside of a tensor of rank {rank}", rule="axis-out-of-range")
        return value % rank

    def constant_sizes(self, data: str, sizes: str) -> list[int] | None:
        """The sizes of a Reshape of `data` as a constant, where `sizes` are computed at run time: 0 copies a size, one -1 is what is left.

        None if a constant cannot say them, or if not even their number is known.
        """
        known = self._draft.known.sizes
        forms, shape = known.get(sizes), self._draft.tensors[data].shape
        if forms is None or shape is None or 0 in shape:
            return None
        numbers = [number(form) for form in forms]
        open_axes = [axis for axis, value in enumerate(numbers) if value is None]
        copied = [axis for axis in open_axes if axis < len(shape) and known.size(shape[axis]) == forms[axis]]
        if 0 in numbers or numbers.count(-1) > 1:
            return None
        others = [axis for axis in open_axes if axis not in copied]
        rest = others if len(open_axes) != 1 or -1 in numbers else open_axes
        if len(rest) + numbers.count(-1) > 1:
            return None
        return [-1 if axis in rest else 0 if value is None else value for axis, value in enumerate(numbers)]

    def variant(self, index: int, key: str, data: Array, quantization: Quantization | None) -> str:
        """Constant input `index` in canonical form: `data` in another order of axes or another type.

        The variant takes over the constant's name if nothing else uses the original; `key` says what was changed.
        """
        return self._draft.variant(self.input(index), key, data, quantization)

    def unsupported_error(self, what: str, *, rule: str = "variant-not-covered") -> UnsupportedError:
        """Return the error for something that the format allows and qconvert does not cover."""
        return UnsupportedError(f"{self._kind} with {what} is not covered", where=self._where(), rule=rule)

    def invalid(self, what: str, *, rule: str = "invalid-operator") -> InvalidModelError:
        """Return the error for something that the format does not allow."""
        return InvalidModelError(what, where=self._where(), rule=rule)

    def _where(self) -> str:
        return f"{self.source} ({self.outputs[0]!r})" if self.outputs else self.source
