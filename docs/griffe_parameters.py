"""An extension of griffe, which reads docstrings for the site: "source, result: text" describes two parameters, each with this text."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^(\w+):$")
_SEVERAL = re.compile(r"^    (\w+(?:, \w+)+): (.*)$")


def spread(text: str) -> str:
    """A docstring in which every parameter and attribute stands by itself."""
    lines: list[str] = []
    inside = False
    rest = text.split("\n")
    while rest:
        line = rest.pop(0)
        if heading := _SECTION.match(line):
            inside = heading[1] in ("Args", "Attributes")
        several = _SEVERAL.match(line) if inside else None
        if several is None:
            lines.append(line)
            continue
        more: list[str] = []
        while rest and rest[0].startswith("     "):
            more.append(rest.pop(0))
        for name in several[1].split(", "):
            lines += [f"    {name}: {several[2]}", *more]
    return "\n".join(lines)


class SpreadParameters(griffe.Extension):
    """Spreads the docstrings of what is documented."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = spread(obj.docstring.value)
