"""TFLite (LiteRT) model files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, Pass, defer_imports, hookimpl
from qconvert.plugins.options import Option

if TYPE_CHECKING:
    from qconvert.graph import Graph

_lazy = defer_imports(__name__)


def _recognizes(start: bytes) -> bool:
    return start[4:8] == b"TFL3"


def _as_written(path: Path, graph: Graph, checked: Any) -> Graph:
    from qconvert.formats.tflite.reader import read_bytes

    return read_bytes(checked, path.stem, again=True)


_READ_OPTIONS = (
    Option("signature", str, "", "TFLite: the key of the entry point that is read, of a file with several; `convert` takes all, too."),
)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    summary = "TensorFlow Lite / LiteRT FlatBuffer"
    return [
        Format(
            "tflite",
            (".tflite", ".lite"),
            summary,
            read=_lazy("reader", "read"),
            write=_lazy("writer", "write"),
            default_target="tflite",
            check=_lazy("verify", "check"),
            recognizes=_recognizes,
            contents=_lazy("file_contents", "contents"),
            as_written=_as_written,
            read_options=_READ_OPTIONS,
            normal_form=("restate_attributes",),
            scopes=("functions", "states", "signatures"),
        )
    ]


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    summary = "LSTM, GRU and RNN that TFLite has no operator for become loops over their steps"
    return [Pass("decompose_recurrence", summary, _lazy("recurrences", "run"), exact=False, within=1e-5, after=("fuse_recurrence",))]


@hookimpl
def qconvert_operators(format: str, direction: str) -> Mapping[str, Callable[..., Any]]:
    if format != "tflite":
        return {}
    from qconvert.formats.tflite.ops import READERS, WRITERS

    tables: dict[str, Mapping[str, Callable[..., Any]]] = {"read": READERS, "write": WRITERS}
    return tables.get(direction, {})
