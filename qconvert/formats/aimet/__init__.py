"""Encodings of AIMET, which exports them beside an ONNX model: JSON of the versions 0.4 to 2.0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Change, Format, Option, hookimpl

if TYPE_CHECKING:
    from qconvert.encodings import Encodings
    from qconvert.graph import Graph


def _read(path: Path, options: Mapping[str, Any]) -> Encodings:
    from qconvert.formats.aimet.reader import read

    return read(path)


def _write(encodings: Encodings, graph: Graph | None, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    from qconvert.formats.aimet.writer import write

    return write(encodings, graph, path, str(options["aimet_version"]))


def _holds(path: Path) -> bool:
    from qconvert.formats.aimet.reader import holds

    return holds(path)


_VERSION = Option("aimet_version", str, "1.0.0", "AIMET's encodings as version 1.0.0 or 2.0.0.", ("1.0.0", "2.0.0"))


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "aimet",
            (".encodings", ".json"),
            "AIMET's encodings, which stand beside an ONNX model",
            content="encodings",
            read_encodings=_read,
            write_encodings=_write,
            holds=_holds,
            write_options=(_VERSION,),
        )
    ]
