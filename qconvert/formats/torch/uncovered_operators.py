"""Operators of a model that are not covered, collected while the rest is read, so that one error lists all of them."""

from __future__ import annotations

from qconvert.errors import QConvertError, UnsupportedError

__all__ = ["Missing"]

_MOST = 20


class Missing:
    """The operators, and the forms of operators, that are not covered."""

    def __init__(self) -> None:
        self._operators: dict[str, list[str]] = {}
        self._forms: dict[str, UnsupportedError] = {}

    def operator(self, name: str, where: str) -> None:
        """Notes an operator that nothing reads, and where it stands."""
        self._operators.setdefault(name, []).append(where)

    def form(self, error: UnsupportedError) -> None:
        """Notes a form of an operator that its reading refuses; of those that one remedy helps, such as a stated shape, the first."""
        if error.remedy and any(other.remedy == error.remedy for other in self._forms.values()):
            return
        self._forms.setdefault(f"{error.where}: {error.reason}", error)

    def require_none(self) -> None:
        """Raises UnsupportedError if anything was noted."""
        if self._operators or self._forms:
            raise self._error([])

    def combine_with(self, error: QConvertError) -> QConvertError:
        """The error for all noted operators and the one that ended the reading; `error` itself if nothing was noted."""
        if not self._operators and not self._forms:
            return error
        return self._error([f"{error.where}: {error.reason}".removeprefix(": ")] if isinstance(error, UnsupportedError) else [])

    def _error(self, further: list[str]) -> UnsupportedError:
        if len(self._forms) == 1 and not self._operators and not further:
            return next(iter(self._forms.values()))
        if len(self._operators) == 1 and not self._forms and not further:
            ((name, places),) = self._operators.items()
            times = f", which occurs in {len(places)} places," if len(places) > 1 else ""
            return UnsupportedError(f"the operator {name}{times} is not covered", where=places[0], rule="operators-not-covered")
        said = [
            f"{name} ({len(places)} times, first {places[0]})" if len(places) > 1 else f"{name} ({places[0]})"
            for name, places in self._operators.items()
        ]
        said += [*self._forms, *further]
        shown = "".join(f"\n    {item}" for item in said[:_MOST]) + (f"\n    and {len(said) - _MOST} more" if len(said) > _MOST else "")
        remedies = [error.remedy for error in self._forms.values() if error.remedy]
        return UnsupportedError(
            f"{len(said)} things in the model are not covered:{shown}", remedy=remedies[0] if remedies else "", rule="several-not-covered"
        )
