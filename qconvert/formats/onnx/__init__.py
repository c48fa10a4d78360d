"""ONNX model files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, Option, Pass, Target, defer_imports, hookimpl
from qconvert.plugins.options import CACHE, FORM, NUMERICS, WEIGHTS_BY_CPU

if TYPE_CHECKING:
    from qconvert.graph import Graph

_lazy = defer_imports(__name__)


#: Of the fields 2 to 8 and 14 of a ModelProto (onnx.proto).
_SECOND_TAGS = (b"\x12", b"\x1a", b"\x22", b"\x28", b"\x32", b"\x3a", b"\x42", b"\x72")


def _recognizes(start: bytes) -> bool:
    """Every known writer begins with the IR version, a small number in field 1, and goes on with another field of a ModelProto.

    Files have version 3 (ONNX 1.0) or later; TensorFlow's saved_model.pb begins likewise with 1.
    """
    return start[:1] == b"\x08" and 3 <= int.from_bytes(start[1:2], "little") <= 32 and start[2:3] in _SECOND_TAGS


_WRITE_OPTIONS = (
    Option("opset", int, 0, "ONNX opset, 13 to 26; by default that of an ONNX source, else 17, or what types and operators need."),
    Option("external_data", bool, False, "ONNX constants in a file next to the model, even below 1 GiB."),
    FORM,
    NUMERICS,
    Option("guards", bool, True, "ONNX: nodes that keep onnxruntime's optimizer from changing values."),
    WEIGHTS_BY_CPU,
    Option("calibration_cache", str, "", "ONNX: a float model, and its scales in this file (TensorRT up to 10).", scales="tensorrt-cache"),
    *CACHE,
)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    summary = "ONNX: QDQ, QOperator and QONNX, partly quantized and float"
    return [
        Format(
            "onnx",
            (".onnx",),
            summary,
            read=_lazy("reader", "read"),
            write=_lazy("writer", "write"),
            default_target="ort-x86",
            own_target="generic",
            recognizes=_recognizes,
            contents=_lazy("container", "contents"),
            companions=_lazy("container", "external_files"),
            modules=_lazy("container", "modules"),
            scopes=("functions",),
            check=_lazy("container", "check"),
            as_written=_lazy("reader", "as_written"),
            normal_form=(
                "io_to_states",
                "fuse_integer_products",
                "absorb_quantization",
                "restore_zero_points",
                "fuse_dynamic",
                "restate_attributes",
                "split_pixels",
                "join_wide_weights",
            ),
            write_options=_WRITE_OPTIONS,
        )
    ]


def _expand_definitions(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    if not any(graph.of_kind("Opaque")):
        return graph, ()
    from qconvert.formats.onnx.definitions import run

    return run(graph, target)


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    summary = "ONNX operators that nothing else has become the operators that define them"
    return [Pass("expand_definitions", summary, _expand_definitions, exact=False, within=1e-4)]


@hookimpl
def qconvert_operators(format: str, direction: str) -> Mapping[str, Callable[..., Any]]:
    if format != "onnx":
        return {}
    from qconvert.formats.onnx import ops, qonnx, qoperator

    tables: dict[str, Mapping[str, Callable[..., Any]]] = {
        "read": {**ops.READERS, **qoperator.READERS, **qonnx.READERS},
        "write": ops.WRITERS,
        "write_qoperator": qoperator.WRITERS,
    }
    return tables.get(direction, {})
