"""MNN: written as a float network with a Pipeline of scales, of which MNN's converter makes a .mnn file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Change, Format, Option, hookimpl

if TYPE_CHECKING:
    from qconvert.graph import Graph


def _write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    from qconvert.formats.mnn.writer import write

    return write(graph, path, options)


_WRITE_OPTIONS = (
    Option("float_layers", str, "", "layers that MNN is to run on real values: names of results or source operators, or patterns, as a,b."),
    Option("pipeline", str, "json", "MNN's Pipeline as json or binary.", ("json", "binary")),
    Option("dump", bool, False, "MNN: the scales as mnnquant writes them, too."),
    Option("no_mnn", bool, False, "MNN: the ONNX model and the Pipeline alone, even if the package MNN is there to make the .mnn."),
)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "mnn",
            (".mnn",),
            "MNN: a folder with a float ONNX model, the Pipeline of its scales, and the .mnn made of both; or the .mnn alone",
            write=_write,
            folder=("model.onnx", "model.json", "model.bin", "model.mnn", "model.mnn.json"),
            default_target="mnn",
            write_options=_WRITE_OPTIONS,
        )
    ]
