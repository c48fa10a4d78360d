"""qconvert's own encodings as a JSON file (docs/encodings.schema.json)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, hookimpl

if TYPE_CHECKING:
    from qconvert.encodings import Encodings
    from qconvert.graph import Graph


def _read(path: Path, options: Mapping[str, Any]) -> Encodings:
    from qconvert.encodings import from_document
    from qconvert.files import map_file
    from qconvert.files.documents import json_of

    return from_document(json_of(bytes(map_file(path)), "the file"))


def _write(encodings: Encodings, graph: Graph | None, path: Path, options: Mapping[str, Any]) -> None:
    from qconvert.encodings import to_document

    path.write_text(json.dumps(to_document(encodings), indent=1) + "\n", encoding="utf-8")


def _holds(path: Path) -> bool:
    from qconvert.errors import InvalidModelError
    from qconvert.files import map_file
    from qconvert.files.documents import json_of

    try:
        document = json_of(bytes(map_file(path)), "the file")
    except InvalidModelError:
        return False
    return isinstance(document, dict) and "encodings" in document


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    summary = "qconvert's own scales without a model (JSON)"
    return [Format("encodings", (".json",), summary, content="encodings", read_encodings=_read, write_encodings=_write, holds=_holds)]
