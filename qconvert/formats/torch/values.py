"""The values that a program of PyTorch works on while it is read: tensors, numbers known only at run time, packed parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qconvert.formats.torch.pickled import StoredTensor

__all__ = ["UNKNOWN", "Named", "Packed", "Ref", "Uncomputed", "Unknown", "leaves"]


class Unknown:
    """What an operator that is not covered would give; reading goes on with it only to find what else is not covered."""


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
    """What an operator returns beside its first result and no graph computes here; a program may leave it unused.

    Attributes:
        what: it is, in words that follow "the operator uses".
    """

    what: str


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """What a packed-parameters object holds.

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


def leaves(value: Any) -> Iterator[Any]:
    """What stands in a value that may be a list, a tuple or a dictionary, or the value itself."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value
