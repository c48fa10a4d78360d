"""Calibration tables of ncnn, which stand next to a float model: text, a line for each layer's weights and data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, hookimpl

if TYPE_CHECKING:
    from qconvert.encodings import Encodings
    from qconvert.graph import Graph
    from qconvert.plugins import Change


def _read(path: Path, options: Mapping[str, Any]) -> Encodings:
    from qconvert.formats.ncnn.table import read

    return read(path)


def _write(encodings: Encodings, graph: Graph | None, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    from qconvert.formats.ncnn.table import write

    return write(encodings, graph, path)


def _holds(path: Path) -> bool:
    from qconvert.formats.ncnn.table import holds

    return holds(path)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    summary = "calibration tables of ncnn, for use with a float model"
    return [Format("ncnn", (".table",), summary, content="encodings", read_encodings=_read, write_encodings=_write, holds=_holds)]
