"""load(): a model file as a canonical graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qconvert.errors import OptionError, QConvertError
from qconvert.graph import Graph
from qconvert.graph.validation import validate
from qconvert.plugins import Format, format_named, format_of, pass_named
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
    """
    path = Path(path)
    reader = format_named(format) if format else format_of(path)
    if reader.read is None:
        raise OptionError(f"the format {reader.name} cannot be read", file=str(path))
    given = checked(options, reader.read_options, f"nothing that reads {reader.name}")
    try:
        return normal_form(reader.read(path, taken(given, reader.read_options)), reader)
    except QConvertError as error:
        error.file = error.file or str(path)
        raise


def normal_form(graph: Graph, source: Format) -> Graph:
    """What a reader read, after the passes that its format names; validated.

    Raises:
        InvalidGraphError: the file contradicts itself.
    """
    for name in source.normal_form:
        graph, _ = pass_named(name).run(graph, None)
    validate(graph)
    return graph
