"""The canonical graph on disk: a safetensors file with the graph as JSON (docs/qgraph.schema.json)."""

from __future__ import annotations

from collections.abc import Iterable

from qconvert.plugins import Format, defer_imports, hookimpl

_lazy = defer_imports(__name__)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "qgraph",
            (".qgraph",),
            "qconvert's own graph (safetensors and JSON)",
            read=_lazy("document", "read"),
            write=_lazy("document", "write"),
            narrow_ranges=True,
            scopes=("functions", "states", "signatures"),
            recognizes=lambda start: start[8:].startswith(b'{"__metadata__":{"qgraph":'),  # safetensors writes the metadata first
        )
    ]
