"""The values that a program of PyTorch works on while it is read, and which of them fit an operator's arguments.

Values are tensors, numbers known only at run time and packed parameters. Arguments have an order, names and defaults, in a short form of
PyTorch's own schemas: "T input, T weight, T? bias=None, l stride=1" has four. The letters are types; they tell overloads apart, since
TorchScript's code does not name overloads: T a tensor, q a quantized one (calls.py verifies that), t several, i an integer, f a number, l
one or several integers, r numbers, x a tensor or a number, b a bool, s a string, o an object, a anything, "?" or None. Arguments after "*"
are passed by name alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.program import Node
from qconvert.formats.torch.stored_values import ScriptObject, StoredTensor, TorchType, WrappedTensor


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
    """A tensor of the graph, or, in a torch.export program, of the program.

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


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value that may be a list, a tuple or a dictionary, with what `change` makes of each item."""
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_leaves(item, change) for item in value)
    return change(value)


_MISSING = object()


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its letter, whether it may be None, its name, whether it is given by its name alone, and its default."""

    letter: str
    optional: bool
    name: str
    named: bool
    default: Any = _MISSING


@cache
def parse_signature(text: str) -> tuple[Argument, ...]:
    """The arguments of a signature in the short form."""
    parts = [part.strip() for part in text.split(", ")]
    free = parts.index("*") if "*" in parts else len(parts)
    return tuple(_argument(part, index > free) for index, part in enumerate(parts) if part not in ("", "*"))


def _argument(text: str, named: bool) -> Argument:
    letter, _, rest = text.partition(" ")
    name, equals, default = rest.partition("=")
    return Argument(letter[0], letter.endswith("?"), name, named, ast.literal_eval(default) if equals else _MISSING)


def bind_arguments(text: str, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any] | None:
    """Values by the names of a signature's arguments, defaults filled in; None if they do not fit it."""
    arguments = parse_signature(text)
    if len(given) > len(arguments):
        return None
    found: dict[str, Any] = {}
    left = dict(named)
    for position, argument in enumerate(arguments):
        if argument.named and position < len(given):
            return None
        value = given[position] if position < len(given) else left.pop(argument.name, argument.default)
        if value is _MISSING or not _fits(argument, value):
            return None
        found[argument.name] = value
    return None if left else found


def _fits(argument: Argument, value: Any) -> bool:
    if value is None:
        return argument.optional or argument.default is None
    return bool(_FITS[argument.letter](value))


def _tensor(value: Any) -> bool:
    return isinstance(value, StoredTensor) or (isinstance(value, (Ref, Node)) and not value.number)


def _integer(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, (Ref, Node)) and value.number)


def _number(value: Any) -> bool:
    return _integer(value) or isinstance(value, float)


def _several(value: Any, one: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(one(item) for item in value)


_FITS: Mapping[str, Any] = {
    "T": _tensor,
    "q": _tensor,
    "t": lambda value: _several(value, lambda item: item is None or _tensor(item)),
    "i": lambda value: _integer(value) or isinstance(value, TorchType),
    "f": _number,
    "l": lambda value: _integer(value) or _several(value, _integer),
    "r": lambda value: _number(value) or _several(value, _number),
    "x": lambda value: _number(value) or _tensor(value),
    "a": lambda value: not isinstance(value, Uncomputed),
    "b": lambda value: isinstance(value, (bool, int)),
    "s": lambda value: isinstance(value, str),
    "o": lambda value: isinstance(value, (Packed, ScriptObject, WrappedTensor)),
}
