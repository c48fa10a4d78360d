"""ONNX model files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, hookimpl

if TYPE_CHECKING:
    from qconvert.graph import Graph


def _write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    from qconvert.formats.onnx.writer import write

    return write(graph, path, options)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [Format("onnx", (".onnx",), "ONNX with QuantizeLinear/DequantizeLinear", write=_write, default_target="ort-x86")]


@hookimpl
def qconvert_operators(format: str, direction: str) -> Mapping[str, Callable[..., Any]]:
    if (format, direction) != ("onnx", "write"):
        return {}
    from qconvert.formats.onnx.ops import WRITERS

    return WRITERS
