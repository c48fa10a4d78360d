"""Encodings of AIMET, which exports them next to an ONNX model: JSON, read in the versions 0.4 to 2.1, written in three of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugin import Change, Format, Option, defer_imports, hookimpl

if TYPE_CHECKING:
    from qconvert.plugin import Encodings, Graph

__all__ = ["qconvert_formats"]

_lazy = defer_imports(__name__)


def _read(path: Path, options: Mapping[str, Any]) -> Encodings:
    from qconvert_aimet.reading import read

    return read(path)


def _write(encodings: Encodings, graph: Graph | None, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    from qconvert_aimet.writing import write

    return write(encodings, graph, path, str(options["aimet_version"]))


_VERSIONS = ("0.6.1", "1.0.0", "2.0.0")
_VERSION = Option("aimet_version", str, "1.0.0", "version of AIMET's encodings to write: 0.6.1, 1.0.0 or 2.0.0.", _VERSIONS)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "aimet",
            (".encodings", ".json"),
            "AIMET's encodings, for use with an ONNX model",
            content="encodings",
            read_encodings=_read,
            write_encodings=_write,
            every_tensor=True,
            holds=_lazy("reading", "holds"),
            write_options=(_VERSION,),
        )
    ]
