"""Calls of operators by name: the right overload is found, its read function called, and what nobody knows is gathered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.formats.torch.constants import Constants
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.session import Session
from qconvert.formats.torch.values import Uncomputed

__all__ = ["Calls"]


class Calls:
    """The operators that a model calls, read one by one.

    Args:
        session: of the model.
        operators: operator with its namespace -> its overloads, in the order in which they are tried.
    """

    def __init__(self, session: Session, operators: Mapping[str, Sequence[Operator]]) -> None:
        self._session = session
        self._operators = operators

    @property
    def constants(self) -> Constants:
        """Those of the model."""
        return self._session.constants

    def call(self, name: str, given: Sequence[Any], named: Mapping[str, Any], where: str, hint: str) -> Any:
        """Return the results of a call.

        Args:
            name: such as "aten::conv2d", without the name of an overload.
            given, named: arguments by position and by name.
            where: where the call stands, for messages.
            hint: the name that the program gives the result.

        Raises:
            InvalidModelError: its arguments do not fit it.
            UnsupportedError: the operator, or this form of it, is not covered.
        """
        source = f"{name} {where}"
        for operator in self._operators.get(name, ()):
            values = operator.bind(given, named)
            if values is not None:
                call = Call(self._session, name, values, source, hint)
                for argument in operator.quantized_arguments:
                    call.require_quantized(argument)
                return _read(operator, call)
        if name in self._operators:
            raise UnsupportedError(
                f"{name} with these arguments is not covered: {_describe_arguments(given, named)}", where=where, rule="variant-not-covered"
            )
        raise UnsupportedError(f"the operator {name} is not covered", where=where, rule="operators-not-covered")

    def covers(self, name: str) -> bool:
        """Whether any form of an operator is covered."""
        return name in self._operators


def _read(operator: Operator, call: Call) -> Any:
    """Return the results of an operator. In a damaged file any argument may stand that fits the signature, such as a negative size."""
    try:
        return operator.read(call)
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise call.invalid(f"the arguments do not fit the operator: {type(error).__name__} {error}", rule="invalid-arguments") from error


def _describe_arguments(given: Sequence[Any], named: Mapping[str, Any]) -> str:
    kinds = [_kind(value) for value in given] + [f"{key}={_kind(value)}" for key, value in named.items()]
    return ", ".join(f"{count} {kind}" for kind, count in Counter(kinds).items())


def _kind(value: Any) -> str:
    return value.what if isinstance(value, Uncomputed) else type(value).__name__
