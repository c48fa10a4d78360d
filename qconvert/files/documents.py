"""Values of a JSON document that somebody else wrote: each is of the sort that is asked for, or the error names its place.

`at` is the place in the document, such as "graph document, tensors[3].name".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from qconvert.errors import InvalidModelError

T = TypeVar("T")


def json_of(data: str | bytes, what: str) -> Any:
    """The values of a JSON text.

    Args:
        data: the text, bytes in UTF-8.
        what: it is, for the error.

    Raises:
        InvalidModelError: it is no JSON, is nested too deep, or an object has a key twice.
    """

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key occurs twice")
        return found

    try:
        return json.loads(data, object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise InvalidModelError(f"{what} is not JSON: {str(error)[:100]}", rule="not-json") from error


def json_next_to(file: Path, largest: int) -> Any:
    """The values of a JSON file that stands next to a model.

    Args:
        file: that exists.
        largest: size in bytes that it may have.

    Raises:
        InvalidModelError: it is larger, or what json_of() refuses.
    """
    if not file.is_file():  # a pipe would be waited for
        raise InvalidModelError(f"{file.name} is not a regular file", rule="not-a-regular-file")
    if (size := file.stat().st_size) > largest:
        raise InvalidModelError(f"{file.name} has {size} bytes; at most {largest} are read", rule="config-too-large")
    return json_of(file.read_bytes(), file.name)


def fail(at: str, reason: str, *, rule: str = "malformed-document") -> NoReturn:
    """Raise InvalidModelError at a place of a document, for breaking a rule."""
    raise InvalidModelError(reason, where=at, rule=rule)


def sort_of(value: Any) -> str:
    """What a value is, in words."""
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def object_of(value: Any, at: str, required: Iterable[str], optional: Iterable[str]) -> dict[str, Any]:
    """An object with these members and no others."""
    if not isinstance(value, dict):
        fail(at, f"is {sort_of(value)}, not an object", rule="wrong-type")
    missing, unknown = set(required) - value.keys(), value.keys() - set(required) - set(optional)
    if missing or unknown:
        fail(
            at,
            f"{min(missing)!r} is missing" if missing else f"{min(unknown)!r} is unknown here",
            rule=("missing-member" if missing else "unknown-member"),
        )
    return value


def read_members(fields: Mapping[str, Any], at: str, read: Mapping[str, Callable[[Any, str], Any]]) -> dict[str, Any]:
    """Members of an object by name, each read by a function of the value and its place."""
    return {name: function(fields[name], f"{at}.{name}") for name, function in read.items()}


def list_of(value: Any, at: str, read: Callable[[Any, str], T]) -> list[T]:
    """A list, each item read by a function of the item and its place."""
    if not isinstance(value, list):
        fail(at, f"is {sort_of(value)}, not a list", rule="wrong-type")
    return [read(item, f"{at}[{index}]") for index, item in enumerate(value)]


def text(value: Any, at: str) -> str:
    """A text without halves of surrogate pairs."""
    if not isinstance(value, str):
        fail(at, f"is {sort_of(value)}, not text", rule="wrong-type")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        fail(at, "is a text with half a surrogate pair", rule="not-utf8")
    return value


def texts(value: Any, at: str) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(list_of(value, at, text))


def text_map(value: Any, at: str) -> dict[str, str]:
    """An object whose values are texts."""
    if not isinstance(value, dict):
        fail(at, f"is {sort_of(value)}, not an object", rule="wrong-type")
    return {text(key, at): text(item, f"{at}[{key!r}]") for key, item in value.items()}


def truth(value: Any, at: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        fail(at, f"is {sort_of(value)}, not true or false", rule="wrong-type")
    return value


def integer(value: Any, at: str, least: int = -(2**63)) -> int:
    """A whole number of 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool):
        fail(at, f"is {value if isinstance(value, float) else sort_of(value)}, not an integer", rule="wrong-type")
    if not least <= value < 2**63:
        fail(at, f"is {value}; the range is {least} to 2^63 - 1", rule="number-out-of-range")
    return value


def number(value: Any, at: str) -> float:
    """A number, {"float": "inf"} and the like too."""
    value = special(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        fail(at, f"is {sort_of(value)}, not a number", rule="wrong-type")
    try:
        return float(value)
    except OverflowError:
        fail(at, "is a number outside the range of a float", rule="number-out-of-range")


def special(value: Any) -> Any:
    """The float that {"float": "inf"} and the like stand for; any other value as it is."""
    if isinstance(value, dict) and value.keys() == {"float"} and value["float"] in ("inf", "-inf", "nan"):
        return float(value["float"])
    return value
