"""Operators that change a tensor in place: what they give is what the tensor is from there on."""

from __future__ import annotations

from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.formats.torch.pickled import StoredTensor
from qconvert.formats.torch.values import Ref, leaves
from qconvert.formats.torch.views import VIEWS

__all__ = ["InPlace"]


class InPlace:
    """Which tensors changed, and into what. Tensors are told apart by identity: a clone has the name of what it is a clone of."""

    def __init__(self) -> None:
        self._now: dict[int, Any] = {}
        self._stale: dict[int, str] = {}
        self._shared: dict[int, list[Any]] = {}
        self._kept: list[Any] = []  # so that no other object gets the identity of one that is noted

    def is_change(self, name: str) -> bool:
        """Whether an operator, such as aten::relu_, changes its first input."""
        return name.endswith("_") and not name.endswith("__")

    def now(self, value: Any) -> Any:
        """A value with every tensor in it as it is now.

        Raises:
            UnsupportedError: one was changed by way of another that shares its elements.
        """
        if not self._now and not self._stale:
            return value
        if isinstance(value, list):
            return [self.now(item) for item in value]
        if isinstance(value, tuple):
            return type(value)(self.now(item) for item in value)
        if isinstance(value, dict):
            return {key: self.now(item) for key, item in value.items()}
        while id(value) in self._now:
            value = self._now[id(value)]
        if id(value) in self._stale:
            raise UnsupportedError(
                "a tensor that is used after a view of it was changed in place is not covered", where=self._stale[id(value)]
            )
        return value

    def noted(self, name: str, given: list[Any], result: Any, where: str) -> Any:
        """What an operator gives: notes what it changes, and what shares elements with its input."""
        first = given[0] if given and isinstance(given[0], (Ref, StoredTensor)) else None
        if first is None:
            return result
        if self.is_change(name):
            if isinstance(result, Ref):
                self._change(first, result, where)
        elif name in VIEWS:
            if isinstance(result, Ref) and isinstance(self.now(first), Ref) and result.name == self.now(first).name:
                return first
            self._share(first, [item for item in leaves(result) if isinstance(item, Ref)])
        return result

    def _change(self, old: Any, new: Ref, where: str) -> None:
        current = self.now(old)
        if current is new:
            return
        self._kept += [old, new, current]
        for other in self._shared.get(id(current), []):
            if other is not current:
                self._stale[id(other)] = where
        self._now[id(current)] = new

    def _share(self, first: Any, results: list[Ref]) -> None:
        current = self.now(first)
        group = self._shared.setdefault(id(current), [current])
        for item in results:
            group.append(item)
            self._shared[id(item)] = group
