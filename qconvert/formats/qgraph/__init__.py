"""The canonical graph on disk: a safetensors file with the graph as JSON (docs/qgraph.schema.json)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, defer_imports, hookimpl

if TYPE_CHECKING:
    from qconvert.graph import Graph

_lazy = defer_imports(__name__)


def _read(path: Path, options: Mapping[str, Any]) -> Graph:
    from qconvert.formats.qgraph.file import read

    return read(path)


def _recognizes(start: bytes) -> bool:
    return start[8:].startswith(b'{"__metadata__":{"qgraph":')  # safetensors writes the metadata first


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    summary = "qconvert's own graph (safetensors and JSON)"
    scopes = ("functions", "states", "signatures")
    return [
        Format(
            "qgraph",
            (".qgraph",),
            summary,
            read=_read,
            write=_lazy("file", "write"),
            narrow_ranges=True,
            scopes=scopes,
            recognizes=_recognizes,
        )
    ]
