"""Arguments of public functions are what their annotations say, or the error names the argument: not an AttributeError from deep inside."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from qconvert.errors import OptionError

P = ParamSpec("P")
R = TypeVar("R")
#: Is called with (what, done, total) as work goes on.
Progress = Callable[[str, int, int], None]
_LONGEST = 60
#: Classes whose values others may stand for, such as numpy's numbers for Python's.
_WIDER: dict[Any, tuple[type, ...]] = {bool: (bool, Integral), int: (Integral,), float: (Real,), Path: (os.PathLike,)}


def no_progress(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def with_checked_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which refuses arguments of other types than its annotations name.

    What may be a model, which is anything with a union of bytes in it, the function checks itself.
    """
    signature = inspect.signature(function)
    hints = cache(lambda: get_type_hints(function))

    @wraps(function)
    def check_and_call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # an argument lacks, or there is no such one: Python says which
            return function(*args, **kwargs)
        named = {
            name: value
            for name, value in given.items()
            if signature.parameters[name].kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
            and bytes not in get_args(hints().get(name))
        }
        require_fitting(f"{function.__name__}()", function, hints(), named)
        return function(*args, **kwargs)

    return check_and_call


def require_fitting(who: str, annotated: Any, hints: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raises OptionError for the first value that is not what its annotation says.

    Args:
        who: what takes the values, for the error.
        annotated: a function or class with annotations.
        hints: the annotations, resolved.
        values: by name.
    """
    for name, value in values.items():
        if not _fits(value, hints.get(name, Any)):
            shown = " ".join(repr(value).split())  # an array has many lines
            shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
            stated = annotated.__annotations__[name]
            raise OptionError(f"{name} is {shown} of type {type(value).__name__}; {who} requires {stated}", rule="wrong-type")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type; one that says too little, or too much, is not held against it."""
    if kind is Any:  # a class itself in some versions of Python
        return True
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, item) for item in inside)
    if kind in (None, NoneType):
        return value is None
    if origin is Callable:
        return callable(value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_fits(key, inside[0]) and _fits(item, inside[1]) for key, item in value.items())
    if origin in (Sequence, list, tuple, Iterable, Collection):
        if origin is not Iterable and (not isinstance(value, Collection) or isinstance(value, Mapping) or hasattr(value, "dtype")):
            return False
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            return False
        kinds = [item for item in inside if item is not ...]
        return not isinstance(value, Collection) or all(any(_fits(item, one) for one in kinds) for item in value)
    accepted = origin or kind
    if accepted in _WIDER:
        is_numpys = accepted is bool and type(value).__name__ in ("bool", "bool_")
        return is_numpys or isinstance(value, _WIDER[accepted])
    return not isinstance(accepted, type) or isinstance(value, accepted)
