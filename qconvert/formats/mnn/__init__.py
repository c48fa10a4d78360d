"""MNN: written as a float network with a Pipeline of scales, of which MNN's converter makes a .mnn file.

Scales are read of all of its documents, without MNN: dumps of its quantizer, Pipelines, PPQ's file, and quantized .mnn files.
"""

from __future__ import annotations

from collections.abc import Iterable

from qconvert.plugins import Format, Option, defer_imports, hookimpl
from qconvert.plugins.options import NUMERICS

_lazy = defer_imports(__name__)


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
            write=_lazy("writer", "write"),
            as_written=_lazy("writer", "as_written"),
            folder=("model.onnx", "model.json", "model.bin", "model.mnn", "model.mnn.json"),
            default_target="mnn",
            read_encodings=_lazy("reader", "read_encodings"),
            write_encodings=_lazy("writer", "write_scales"),
            encodings_suffixes=(".mnn", ".json", ".bin"),
            holds=_lazy("reader", "holds"),
            read_options=_READ_OPTIONS,
            write_options=_WRITE_OPTIONS,
        ),
    ]
