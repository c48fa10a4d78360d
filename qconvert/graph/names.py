"""Names for new tensors, and known ones near to a name that is not found."""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable

from qconvert.errors import format_some

#: Names in a message, and known ones that are looked at.
_SHOWN, _MOST = 8, 2000


class Names:
    """Gives names that are free, each in constant time however many tensors want the same one.

    Args:
        taken: what holds the names in use, such as the dictionaries of tensors themselves: they are looked at when a name is asked for,
            and names may be added to them meanwhile, but not be taken away.
    """

    def __init__(self, *taken: Container[str]) -> None:
        self._taken = taken
        self._numbers: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        """`wanted`, or with the lowest number appended that makes it free. It stays free until the caller takes it."""
        number = self._numbers.get(wanted, 0)
        name = f"{wanted}_{number}" if number else wanted
        while any(name in names for names in self._taken):
            number += 1
            name = f"{wanted}_{number}"
        if number:
            self._numbers[wanted] = number
        return name


def quote_nearest(names: Iterable[str], known: Iterable[str]) -> str:
    """A few names, each with the nearest known one, for a message."""
    listed, others = list(names), list(known)[:_MOST]
    shown = []
    for name in listed[:_SHOWN]:
        part = name.lower()
        holding = [other for other in others if len(part) > 2 and part in other.lower()]  # "vnni" of "ort-x86-vnni"
        found = sorted(holding, key=len)[:1] or difflib.get_close_matches(name, others, 1, 0.5)
        shown.append(f"{name!r} (nearest: {found[0]!r})" if found else repr(name))
    return format_some([*shown, *listed[_SHOWN:]], _SHOWN)
