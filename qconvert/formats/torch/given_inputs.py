"""Shapes of inputs that the user states: "1,3,224,224", or "x=1,3,224,224; y=1,10"."""

from __future__ import annotations

from qconvert.errors import OptionError
from qconvert.graph import Shape

__all__ = ["GivenInputs"]


class GivenInputs:
    """The option --input-shape.

    Args:
        text: shapes separated by semicolons, in the order of the inputs, or each behind a name and "=". A size is a number, or a name for
            one that is known only at run time. A type may stand behind a colon: "x=1,3,224,224:uint8".

    Raises:
        OptionError: it is no such text.
    """

    def __init__(self, text: str) -> None:
        self._named: dict[str, tuple[Shape, str]] = {}
        self._listed: list[tuple[Shape, str]] = []
        self._used: set[str | int] = set()
        for part in filter(None, (piece.strip() for piece in text.split(";"))):
            name, equals, rest = part.rpartition("=")
            sizes, _, dtype = rest.partition(":")
            found = _shape(sizes, part), dtype.strip()
            if equals:
                self._named[name.strip()] = found
            else:
                self._listed.append(found)

    def shape(self, name: str, index: int) -> Shape | None:
        """The shape of an input by its name or its place; None if the user says none."""
        return self._found(name, index)[0]

    def dtype(self, name: str, index: int) -> str:
        """Its storage type; "" if the user says none."""
        return self._found(name, index)[1]

    def _found(self, name: str, index: int) -> tuple[Shape | None, str]:
        if name in self._named:
            self._used.add(name)
            return self._named[name]
        if index < len(self._listed):
            self._used.add(index)
            return self._listed[index]
        return None, ""

    def require_used(self) -> None:
        """Raises OptionError if a shape was stated for an input that is not there."""
        left = [name for name in self._named if name not in self._used]
        left += [str(index) for index in range(len(self._listed)) if index not in self._used]
        if left:
            raise OptionError(f"--input-shape states inputs that the model does not have: {', '.join(left)}")


def _shape(text: str, whole: str) -> Shape:
    sizes: list[int | str] = []
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        if item.isdecimal() and int(item) < 2**40:
            sizes.append(int(item))
        elif item.isidentifier():
            sizes.append(item)
        else:
            raise OptionError(f"--input-shape {whole!r} has a size {item!r}, which is neither a number nor a name")
    return tuple(sizes)
