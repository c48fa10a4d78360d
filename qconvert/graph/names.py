"""Names for new tensors."""

from __future__ import annotations

from collections.abc import Container

__all__ = ["Names"]


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
