"""What Tab offers behind an option."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

from qconvert.plugins import Option, formats, passes, targets

__all__ = ["choices_of", "known_formats", "known_pass_lists", "known_passes", "known_targets"]

_Completed = list[tuple[str, str]]


def _beginning(incomplete: str, items: Iterable[tuple[str, str]]) -> _Completed:
    return [(name, help) for name, help in items if name.startswith(incomplete)]


def known_targets(context: typer.Context, incomplete: str) -> _Completed:
    """Targets with what they are; behind a command such as tflite2onnx those of its result's format."""
    wanted = (context.info_name or "").partition("2")[2]
    found = [item for item in targets().values() if wanted not in formats() or item.format == wanted]
    return _beginning(incomplete, ((item.name, item.summary) for item in found))


def known_formats(incomplete: str) -> _Completed:
    """Formats with what they are."""
    return _beginning(incomplete, ((item.name, item.summary) for item in formats().values()))


def known_passes(incomplete: str) -> _Completed:
    """Passes with what they change, and "all"."""
    return _beginning(
        incomplete, [("all", "every pass that changes something"), *((item.name, item.summary) for item in passes().values())]
    )


def known_pass_lists(incomplete: str) -> _Completed:
    """The last name in a list of passes with commas."""
    before, comma, last = incomplete.rpartition(",")
    return [(f"{before}{comma}{item.name}", item.summary) for item in passes().values() if item.name.startswith(last)]


def choices_of(option: Option) -> Callable[[str], _Completed]:
    """Completes the choices of a declared option."""

    def complete(incomplete: str) -> _Completed:
        return _beginning(incomplete, ((str(choice), "") for choice in option.choices))

    return complete
