"""MNN: written as a float network with a Pipeline of scales, of which MNN's converter makes a .mnn file.

Scales are read of all of its documents, without MNN: dumps of its quantizer, Pipelines, PPQ's file, and quantized .mnn files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, Option, hookimpl
from qconvert.plugins.options import NUMERICS

if TYPE_CHECKING:
    from qconvert.encodings import Encodings
    from qconvert.graph import Graph
    from qconvert.plugins import Change


def _write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    from qconvert.formats.mnn.writer import write

    return write(graph, path, options)


def _as_written(path: Path, graph: Graph, checked: Any) -> Graph | None:
    from qconvert.formats.mnn.writer import as_written

    return as_written(path)


def _read_encodings(path: Path, options: Mapping[str, Any]) -> Encodings:
    from qconvert.formats.mnn.reader import read_encodings

    return read_encodings(path, options)


def _write_encodings(encodings: Encodings, graph: Graph | None, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    from qconvert.formats.mnn.writer import write_scales

    return write_scales(encodings, graph, path, options)


def _holds(path: Path) -> bool:
    from qconvert.formats.mnn.reader import holds

    return holds(path)


_NAMED = "The .mnn file that names the tensors, for a dump of MNN's quantizer or a .mnn file of its method EMA."
_READ_OPTIONS = (Option("mnn", str, "", _NAMED, is_file=True),)
_WRITE_OPTIONS = (
    Option(
        "float_layers", str, "", "Layers that MNN runs in float: names of results or of source operators, or patterns, separated by commas."
    ),
    Option("pipeline", str, "json", "MNN's Pipeline as json or binary.", ("json", "binary")),
    Option("dump", bool, False, "MNN: also write the scales as mnnquant does."),
    NUMERICS,
    Option("no_mnn", bool, False, "MNN: write only the ONNX model and the Pipeline, even if the package MNN is installed."),
)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "mnn",
            (".mnn",),
            "MNN: a folder with a float ONNX model, the Pipeline with its scales, and the .mnn file made of both; reads every file "
            "of scales of MNN",
            write=_write,
            as_written=_as_written,
            folder=("model.onnx", "model.json", "model.bin", "model.mnn", "model.mnn.json"),
            default_target="mnn",
            read_encodings=_read_encodings,
            write_encodings=_write_encodings,
            encodings_suffixes=(".mnn", ".json", ".bin"),
            holds=_holds,
            read_options=_READ_OPTIONS,
            write_options=_WRITE_OPTIONS,
        ),
    ]
