"""A graph as a file that a runtime loads: for graphs in memory, and for files of which something else is asked than they hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qconvert.conversion.normalizing import chosen_target, normalize
from qconvert.conversion.saving import save
from qconvert.errors import QConvertError, RuntimeRefusedError
from qconvert.graph import Graph
from qconvert.graph.metadata import SOURCE_FORMAT
from qconvert.plugins import Format, formats, runtimes

__all__ = ["written_copy"]

#: Where the graph's own format has no runtime, or cannot be written.
_OTHERWISE = "onnx"


def written_copy(graph: Graph, folder: Path, stem: str) -> tuple[Path, Format]:
    """Writes a graph into a folder, in its source format and unchanged if possible.

    Args:
        graph: what is written.
        folder: an empty folder.
        stem: of the file's name.

    Raises:
        QConvertError: no format with a runtime can hold it; the error is that of the last one.
    """
    error: QConvertError = RuntimeRefusedError("no runtime runs the formats that this could be written as", rule="no-runtime")
    for number, (writer, target) in enumerate(_candidate_formats(graph)):
        place = folder / str(number)
        place.mkdir()
        path = place / f"{stem}{writer.suffixes[0]}"
        try:
            fitted, _ = normalize(graph, chosen_target(writer, target)) if target else (graph, ())
            save(fitted, path, writer.name)
        except QConvertError as problem:
            error = problem
        else:
            return path, writer
    raise error


def _candidate_formats(graph: Graph) -> Iterator[tuple[Format, str]]:
    """Formats and targets, the one that changes least first."""
    runs = {name for item in runtimes().values() for name in item.formats}
    for name in dict.fromkeys((graph.metadata.get(SOURCE_FORMAT, ""), _OTHERWISE)):
        writer = formats().get(name)
        if writer is None or writer.write is None or name not in runs:
            continue
        if not writer.own_target:
            yield writer, ""
        if target := writer.own_target or writer.default_target:
            yield writer, target
