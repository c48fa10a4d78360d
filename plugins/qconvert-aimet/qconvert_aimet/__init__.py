"""Encodings of AIMET, which exports them next to an ONNX model: JSON, read in the versions 0.4 to 2.1, written in three of them."""

from __future__ import annotations

from collections.abc import Iterable

from qconvert.plugin import Format, Option, defer_imports, hookimpl

__all__ = ["qconvert_formats"]

_lazy = defer_imports(__name__)


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
            read_encodings=_lazy("reading", "read"),
            write_encodings=_lazy("writing", "write"),
            every_tensor=True,
            holds=_lazy("reading", "holds"),
            write_options=(_VERSION,),
        )
    ]
