"""The values that a program of PyTorch works on while it is read: tensors, numbers known only at run time, packed parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.stored_values import StoredTensor

__all__ = ["UNKNOWN", "EndlessError", "Named", "Packed", "PackedCell", "Ref", "Uncomputed", "Unknown", "leaves"]


class EndlessError(InvalidModelError):
    """The program does not end within the limits; it is not tried again."""


class Unknown:
    """The result of an operator that is not covered; reading continues with it only to find further ones."""


UNKNOWN = Unknown()


class Named(tuple[Any, ...]):
    """A tuple whose items have names.

    Attributes:
        names: of the items.
    """

    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Named:
        """Values by their names, in order."""
        made = cls(values.values())
        made.names = tuple(values)
        return made


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of the graph.

    Attributes:
        name: in the graph.
        number: whether the program has it as a number (a size that is known only at run time): an int64 of rank 0.
    """

    name: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Uncomputed:
    """What an operator returns next to its first result and no graph computes here; a program may leave it unused.

    Attributes:
        what: it is, in words that follow "the operator uses".
    """

    what: str


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """The contents of a packed-parameters object.

    Attributes:
        name: of the object, by its place in the model.
        weight: quantized; O,I,spatial, or I,O/groups,spatial of a transposed convolution; (O, I) of a linear layer.
        bias: real, or None.
        stride, padding, dilation, output_padding: one number an axis; () for a linear layer.
        groups: of a convolution.
        transposed: whether it is a transposed convolution.
    """

    name: str
    weight: StoredTensor
    bias: StoredTensor | None
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PackedCell:
    """The weights of a recurrent cell in packed parameters.

    Attributes:
        data, hidden: what the data and the hidden values are multiplied with, as linear layers.
        reduces: whether data are rounded in 127 steps.
    """

    data: Packed
    hidden: Packed
    reduces: bool = False


#: Items within items, and lists within each other, beyond which a value is taken for one that contains itself.
_MOST_ITEMS, _DEEPEST = 2**18, 200


def leaves(value: Any, spend: Callable[[int], None] = lambda count: None) -> Iterator[Any]:
    """The items of a value that may be a list, a tuple or a dictionary, or the value itself.

    A list may stand in another several times, or in itself: what is small in a file may be endless here.

    Args:
        value: of a program.
        spend: is told of every eighth item that is looked at.

    Raises:
        EndlessError: the value has more than 262,144 items or is deeper than 200 lists.
    """
    pending, count = [iter((value,))], 0
    while pending:
        for item in pending[-1]:
            count += 1
            if not count % 8:
                spend(1)
            if isinstance(item, (list, tuple, dict)):
                pending.append(iter(item.values() if isinstance(item, dict) else item))
                break
            yield item
        else:
            pending.pop()
        if count > _MOST_ITEMS or len(pending) > _DEEPEST:
            raise EndlessError("lists contain themselves, or each other too often", rule="nested-too-deeply")
