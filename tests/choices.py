"""What generators of random models share: all choices come from one random.Random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any


class Choices:
    """Decisions by chance."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.rng.choice(list(choices))


class NamedChoices(Choices):
    """Likewise, with names that are given once."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._count = 0

    def fresh(self, word: str) -> str:
        self._count += 1
        return f"{word}{self._count}"
