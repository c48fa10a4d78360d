"""Calibration caches of TensorRT, versions up to 10: a scale for each tensor of a float ONNX model, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, hookimpl
from qconvert.plugins.options import CACHE

if TYPE_CHECKING:
    from qconvert.encodings import Encodings
    from qconvert.graph import Graph
    from qconvert.plugins import Change


def _read(path: Path, options: Mapping[str, Any]) -> Encodings:
    from qconvert.formats.calibration_cache.cache import read

    return read(path)


def _write(encodings: Encodings, graph: Graph | None, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    from qconvert.formats.calibration_cache.cache import write

    return write(encodings, graph, path, str(options["trt_version"]), str(options["trt_calibrator"]))


def _holds(path: Path) -> bool:
    from qconvert.formats.calibration_cache.cache import holds

    return holds(path)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "tensorrt-cache",
            (".cache", ".calib", ".table", ".bin", ".txt"),
            "calibration caches of TensorRT up to 10, for use with a float ONNX model",
            default_target="tensorrt-cache",
            content="encodings",
            read_encodings=_read,
            write_encodings=_write,
            holds=_holds,
            write_options=CACHE,
        )
    ]
