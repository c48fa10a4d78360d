"""Calibration caches of TensorRT, versions up to 10: a scale for each tensor of a float ONNX model, as text."""

from __future__ import annotations

from collections.abc import Iterable

from qconvert.plugins import Format, defer_imports, hookimpl
from qconvert.plugins.options import CACHE

_lazy = defer_imports(__name__)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "tensorrt-cache",
            (".cache", ".calib", ".table", ".bin", ".txt"),
            "calibration caches of TensorRT up to 10, for use with a float ONNX model",
            default_target="tensorrt-cache",
            content="encodings",
            read_encodings=_lazy("cache", "read"),
            write_encodings=_lazy("cache", "write"),
            holds=_lazy("cache", "holds"),
            write_options=CACHE,
        )
    ]
