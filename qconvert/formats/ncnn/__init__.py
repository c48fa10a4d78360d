"""Calibration tables of ncnn, which stand next to a float model: text, a line for each layer's weights and data."""

from __future__ import annotations

from collections.abc import Iterable

from qconvert.plugins import Format, defer_imports, hookimpl

_lazy = defer_imports(__name__)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "ncnn", (".table",), "calibration tables of ncnn, for use with a float model", content="encodings",
            read_encodings=_lazy("table", "read"), write_encodings=_lazy("table", "write"), holds=_lazy("table", "holds"),
        )
    ]  # fmt: skip
