"""Calls of operators by name: the right overload is found and its read function called; operators that are not covered are collected, so
that one error lists all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from qconvert.errors import QConvertError, UnsupportedError
from qconvert.formats.torch.operands import Part
from qconvert.formats.torch.ops import OPERATORS
from qconvert.formats.torch.reading import Operator, Reading
from qconvert.formats.torch.session import Session
from qconvert.formats.torch.values import Ref, Uncomputed, map_leaves

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


def bind_operator(name: str, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[Operator, dict[str, Any]] | None:
    """The first form of an operator that takes these arguments, and these by name, defaults filled in; None if none takes them."""
    found = ((operator, operator.bind(given, named)) for operator in OPERATORS.get(name, ()))
    return next(((operator, values) for operator, values in found if values is not None), None)


def call_operator(session: Session, name: str, given: Sequence[Any], named: Mapping[str, Any], where: str, hint: str) -> Any:
    """Return the results of a call.

    Args:
        session: of the model.
        name: such as "aten::conv2d", without the name of an overload; for one that changes its first input, see plain_name().
        given, named: arguments by position and by name.
        where: where the call stands, for messages.
        hint: the name that the program gives the result.

    Raises:
        InvalidModelError: its arguments do not fit it.
        UnsupportedError: the operator, or this form of it, is not covered.
    """
    name = plain_name(name)
    found = bind_operator(name, given, named)
    if found is not None:
        operator, values = found
        call = Reading(session, name, values, f"{name} {where}", hint)
        for argument in operator.quantized_arguments:
            call.require_quantized(argument)
        try:
            return map_leaves(operator.read(call), _ref_of)
        except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # such as a negative size
            what = f"the arguments do not fit the operator: {type(error).__name__} {error}"
            raise call.invalid(what, rule="invalid-arguments") from error
    if name in OPERATORS:
        counts = Counter([*map(_describe_type, given), *(f"{key}={_describe_type(value)}" for key, value in named.items())])
        listed = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        raise UnsupportedError(f"{name} with these arguments is not covered: {listed}", where=where, rule="variant-not-covered")
    raise UnsupportedError(f"the operator {name} is not covered", where=where, rule="operators-not-covered")


def is_covered(name: str) -> bool:
    """Whether any form of an operator is covered, or of that which does the same in a tensor of its own."""
    return plain_name(name) in OPERATORS


def is_change(name: str) -> bool:
    """Whether an operator, such as aten::relu_, changes its first input."""
    return name.endswith("_") and not name.endswith("__")


def plain_name(name: str) -> str:
    """The name of an operator that gives a tensor of its own: aten::relu of aten::relu_. That itself where it is read by this name."""
    return name[:-1] if is_change(name) and name not in OPERATORS else name


def _ref_of(result: Any) -> Any:
    return Ref(result) if isinstance(result, str) else Ref(result.name) if isinstance(result, Part) else result


def _describe_type(value: Any) -> str:
    return value.what if isinstance(value, Uncomputed) else type(value).__name__
