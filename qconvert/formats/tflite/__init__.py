"""TFLite (LiteRT) model files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, hookimpl

if TYPE_CHECKING:
    from qconvert.graph import Graph


def _read(path: Path) -> Graph:
    from qconvert.formats.tflite.reader import read

    return read(path)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [Format("tflite", (".tflite", ".lite"), "TensorFlow Lite / LiteRT FlatBuffer", read=_read)]


@hookimpl
def qconvert_operators(format: str, direction: str) -> Mapping[str, Callable[..., Any]]:
    if (format, direction) != ("tflite", "read"):
        return {}
    from qconvert.formats.tflite.ops import READERS

    return READERS
