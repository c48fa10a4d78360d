"""Calibration tables of ncnn, which stand next to a float model: text, a line for each layer's weights and data."""

from __future__ import annotations

from collections.abc import Iterable

from qconvert.plugins import Format, defer_imports, hookimpl

_lazy = defer_imports(__name__)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    summary = "calibration tables of ncnn, for use with a float model"
    read, write, holds = (_lazy("table", name) for name in ("read", "write", "holds"))
    return [Format("ncnn", (".table",), summary, content="encodings", read_encodings=read, write_encodings=write, holds=holds)]
