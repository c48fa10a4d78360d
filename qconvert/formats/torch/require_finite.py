"""Values of a pickle that are no larger than they look: lists may stand in themselves, or double with every level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qconvert.errors import InvalidModelError

__all__ = ["require_finite"]

#: Items of a value written out, and lists within each other. The largest real data.pkl seen has 60,000.
_MOST_ITEMS, _DEEPEST = 2**22, 200


def require_finite(value: Any, what: str) -> None:
    """Raises InvalidModelError for a value that is endless, too deep or too large once everything that it shares is written out.

    Args:
        value: lists, tuples, dictionaries, and objects with a `state` or `parts`, each of which is looked at once.
        what: it is, for messages.
    """
    objects, seen = [value], {id(value)}
    walked: set[int] = set()
    sizes: dict[int, int] = {}
    while objects:
        top = objects.pop()
        for item in _parts(top):
            _measure(item, sizes, what)
        for item in _objects(top, walked):
            if id(item) not in seen:
                seen.add(id(item))
                objects.append(item)


def _parts(value: Any) -> list[Any]:
    """What an object is made of and holds; a list is its own part."""
    if hasattr(value, "state"):
        return [value.state, value.arguments]
    return list(value.parts.values()) if hasattr(value, "parts") else [value]


def _objects(value: Any, seen: set[int]) -> Iterator[Any]:
    """The objects in the lists of a value, which are known to end."""
    pending = _parts(value)
    while pending:
        item = pending.pop()
        if hasattr(item, "state") or hasattr(item, "parts"):
            yield item
        elif isinstance(item, (list, tuple, dict)) and id(item) not in seen:
            seen.add(id(item))
            pending.extend(item.values() if isinstance(item, dict) else item)


def _measure(value: Any, sizes: dict[int, int], what: str) -> None:
    """Notes how many items the lists in a value have, written out; the innermost first."""
    open_: list[tuple[Any, Iterator[Any], int]] = []
    inside: set[int] = set()

    def enter(item: Any) -> None:
        if id(item) in inside or len(open_) >= _DEEPEST:
            raise InvalidModelError(
                f"the pickle {what} has lists that contain themselves, or are nested too deeply", rule="nested-too-deeply"
            )
        inside.add(id(item))
        open_.append((item, iter(item.values() if isinstance(item, dict) else item), 1))

    if isinstance(value, (list, tuple, dict)) and id(value) not in sizes:
        enter(value)
    while open_:
        item, rest, count = open_.pop()
        for part in rest:
            if not isinstance(part, (list, tuple, dict)):
                count += 1
            elif id(part) in sizes:
                count += sizes[id(part)]
            else:
                open_.append((item, rest, count))
                enter(part)
                break
        else:
            if count > _MOST_ITEMS:
                raise InvalidModelError(
                    f"the pickle {what} has lists that share each other, with more than {_MOST_ITEMS} items once expanded",
                    rule="too-many-items",
                )
            sizes[id(item)] = count
            inside.discard(id(item))
            if open_:
                owner, others, own = open_.pop()
                open_.append((owner, others, own + count))
