"""The arguments of operators, by order, name and default, in a short form of PyTorch's own schemas.

"T input, T weight, T? bias=None, l stride=1" has four arguments. The letters are types; they tell overloads
apart, since TorchScript's code does not name overloads: T a tensor, q a quantized one (calls.py verifies that), t several, i an integer,
f a number, l one or several integers, r numbers, x a tensor or a number, b a bool, s a string, o an object, a anything, "?" or None.
Arguments after "*" are passed by name alone.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from qconvert.formats.torch.stored_values import ScriptObject, StoredTensor, TorchType, WrappedTensor
from qconvert.formats.torch.values import Packed, Ref, Uncomputed

__all__ = ["Argument", "bind_arguments", "parse_signature"]

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
    return isinstance(value, (Ref, StoredTensor)) and not (isinstance(value, Ref) and value.number)


def _integer(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, Ref) and value.number)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Ref) and value.number)


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
