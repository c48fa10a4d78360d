"""The graph that a conversion is judged by: of the file that was written, as far as its format is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qconvert.conversion.loading import normal_form, read_literal_graph
from qconvert.errors import QConvertError
from qconvert.graph import Graph
from qconvert.plugins import Format
from qconvert.plugins.options import fill_defaults

__all__ = ["Written", "read_back"]


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, as a graph.

    Attributes:
        graph: of the file; if the file is not read, the graph that was written.
        unread: why the file is not read; "" if it is.
    """

    graph: Graph
    unread: str = ""


def read_back(path: Path, writer: Format, graph: Graph, checked: Any) -> Written:
    """Reads a file back that was just written.

    Args:
        path: the file, or folder.
        writer: its format.
        graph: that was written.
        checked: what the format's `check` returned.
    """
    from qconvert.passes.absorb.casts import dequantized_casts

    graph = dequantized_casts(graph)  # weights that were decomposed have their scales again when they are read
    try:
        if writer.as_written is not None:
            found = writer.as_written(path, graph, checked)
        elif writer.read is not None:
            found = normal_form(read_literal_graph(path, writer, fill_defaults({}, writer.read_options)), writer)
        else:
            found = None
    except QConvertError as error:
        return Written(graph, f"the file is not read back: {error.reason}")
    return Written(graph, f"files of the format {writer.name} are not read") if found is None else Written(found)
