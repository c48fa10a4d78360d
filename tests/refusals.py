"""Asserts on errors by what is stable in them: class, rule and place, not prose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from qconvert.errors import QConvertError


@contextmanager
def refused(
    kind: type[QConvertError], rule: str, *, where: str | None = None, holds: tuple[object, ...] = ()
) -> Iterator[pytest.ExceptionInfo[QConvertError]]:
    """Expect an error of a class for breaking a rule.

    Args:
        kind: the class of the error.
        rule: the error's `rule`.
        where: the operator or tensor that it has to name; None for any.
        holds: names and numbers that its text has to hold.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert error.rule == rule, f"{error.rule!r}: {error.message}"
    assert where is None or error.where == where, f"{error.where!r}: {error}"
    missing = [item for item in holds if str(item) not in error.message]
    assert not missing, f"{missing} not in: {error.message}"
