"""load(): a model file as a canonical graph."""

from __future__ import annotations

from pathlib import Path

from qconvert.errors import OptionError, QConvertError
from qconvert.graph import Graph
from qconvert.plugins import format_named, format_of

__all__ = ["load"]


def load(path: str | Path, format: str = "") -> Graph:
    """The canonical graph of a model file.

    Args:
        path: the file.
        format: a format's name; by default the file's suffix decides.

    Raises:
        QConvertError: the file cannot be read, is damaged, or holds what is not covered. The error names it.
    """
    path = Path(path)
    reader = format_named(format) if format else format_of(path)
    if reader.read is None:
        raise OptionError(f"the format {reader.name} cannot be read", file=str(path))
    try:
        return reader.read(path)
    except QConvertError as error:
        error.file = error.file or str(path)
        raise
