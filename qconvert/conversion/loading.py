"""load(): a model file as a canonical graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qconvert.errors import FileAccessError, InvalidModelError, OptionError, QConvertError, WrongFormatError
from qconvert.graph import Graph
from qconvert.graph.validation import validate
from qconvert.plugins import Format, format_named, format_of, formats, pass_named
from qconvert.plugins.options import checked, taken

__all__ = ["load", "normal_form"]


def load(path: str | Path, format: str = "", **options: Any) -> Graph:
    """The canonical graph of a model file.

    Args:
        path: the file.
        format: a format's name; by default the file's suffix decides.
        options: of the format's reader; `qconvert formats` lists them.

    Raises:
        QConvertError: the file cannot be read, is damaged, or holds what is not covered. The error names it.
        WrongFormatError: it is of another format.
    """
    path = Path(path)
    reader = format_named(format) if format else format_of(path)
    if reader.read is None:
        raise OptionError(f"the format {reader.name} cannot be read", file=str(path))
    given = checked(options, reader.read_options, f"nothing that reads {reader.name}")
    try:
        return normal_form(reader.read(path, taken(given, reader.read_options)), reader)
    except QConvertError as error:
        if isinstance(error, InvalidModelError) and (found := _recognized(path, reader)):
            raise WrongFormatError(
                f"this is a file of the format {found}, not {reader.name}", found=found, remedy=f"Read it as {found}.", file=str(path)
            ) from error
        error.file = error.file or str(path)
        raise


def _recognized(path: Path, tried: Format) -> str:
    """The name of the format that a file is of, if it is another than the one that was tried; "" if nobody knows."""
    try:
        with path.open("rb") as stream:
            start = stream.read(64)
    except OSError as error:
        raise FileAccessError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    names = [item.name for item in formats().values() if item.recognizes is not None and item.recognizes(start)]
    return "" if tried.name in names else next(iter(names), "")


def normal_form(graph: Graph, source: Format) -> Graph:
    """What a reader read, after the passes that its format names; validated.

    Raises:
        InvalidGraphError: the file contradicts itself.
    """
    for name in source.normal_form:
        graph, _ = pass_named(name).run(graph, None)
    validate(graph)
    return graph
