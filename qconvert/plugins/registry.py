"""Formats, targets, passes and operator functions by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from qconvert.errors import OptionError
from qconvert.plugins.host import collected, hook_results
from qconvert.plugins.target import Derived, Target
from qconvert.plugins.types import Format, Pass

__all__ = ["format_named", "format_of", "formats", "operators", "pass_named", "passes", "target_named", "targets"]


@cache
def formats() -> Mapping[str, Format]:
    """Every format, by name."""
    return collected("qconvert_formats")


@cache
def targets() -> Mapping[str, Target]:
    """Every target, by name. One that derives from a target that does not exist is left out; target_named() says so."""
    return {name: target for name, item in _given_targets().items() if (target := _resolved(item)) is not None}


@cache
def _given_targets() -> Mapping[str, Target | Derived]:
    return collected("qconvert_targets")


def _resolved(item: Target | Derived) -> Target | None:
    """The target itself; a derived one with all that the others before it changed. None if they lead nowhere or in a circle."""
    found: Target | Derived | None = item
    chain: list[Derived] = []
    while isinstance(found, Derived):
        if found in chain:
            return None
        chain.append(found)
        found = _given_targets().get(found.base)
    for derived in reversed(chain):
        found = found.derive(**derived.changes) if found is not None else None
    return found


@cache
def passes() -> Mapping[str, Pass]:
    """Every pass, by name."""
    return collected("qconvert_passes")


@cache
def operators(format: str, direction: str) -> Mapping[str, Callable[..., Any]]:
    """The operator functions of a format, by the name that the source side gives each operator.

    Args:
        format: the name of the format.
        direction: "read", "write", or "write_qoperator" (see formats/onnx/qoperator).
    """
    tables = hook_results("qconvert_operators", format=format, direction=direction)
    return {name: function for table in tables for name, function in table.items()}


def format_named(name: str) -> Format:
    """The format called `name`; raises OptionError, listing the known ones, if there is none."""
    if name not in formats():
        raise OptionError(f"there is no format {name!r}", remedy=f"Known formats: {', '.join(sorted(formats()))}.")
    return formats()[name]


def format_of(path: Path) -> Format:
    """The format that a file's suffix stands for; raises OptionError if none does."""
    for candidate in formats().values():
        if path.suffix.lower() in candidate.suffixes:
            return candidate
    known = ", ".join(suffix for item in formats().values() for suffix in item.suffixes)
    raise OptionError(f"the suffix {path.suffix!r} belongs to no known format", file=str(path), remedy=f"Known suffixes: {known}.")


def target_named(name: str) -> Target:
    """The target called `name`; raises OptionError, listing the known ones, if there is none."""
    item = _given_targets().get(name)
    if isinstance(item, Derived) and name not in targets():
        raise OptionError(f"the target {name!r} derives from {item.base!r}, which does not exist")
    if name not in targets():
        raise OptionError(f"there is no target {name!r}", remedy=f"Known targets: {', '.join(sorted(targets()))}.")
    return targets()[name]


def pass_named(name: str) -> Pass:
    """The pass called `name`; raises OptionError, listing the known ones, if there is none."""
    if name not in passes():
        raise OptionError(f"there is no pass {name!r}", remedy=f"Known passes: {', '.join(sorted(passes()))}.")
    return passes()[name]
