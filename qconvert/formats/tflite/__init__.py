"""TFLite (LiteRT) model files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, Pass, Target, hookimpl
from qconvert.plugins.options import Option

if TYPE_CHECKING:
    from qconvert.graph import Graph
    from qconvert.plugins import Change


def _read(path: Path, options: Mapping[str, Any]) -> Graph:
    from qconvert.formats.tflite.reader import read

    return read(path, str(options.get("signature", "")))


def _write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    from qconvert.formats.tflite.writer import write

    return write(graph, path, options)


def _check(path: Path) -> Any:
    from qconvert.formats.tflite.verify import check

    return check(path)


def _recognizes(start: bytes) -> bool:
    return start[4:8] == b"TFL3"


def _as_written(path: Path, graph: Graph, checked: Any) -> Graph:
    from qconvert.formats.tflite.reader import read_bytes

    return read_bytes(checked, path.stem, again=True)


def _contents(path: Path) -> Mapping[str, Any]:
    from qconvert.formats.tflite.file_contents import contents

    return contents(path)


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
            read=_read,
            write=_write,
            default_target="tflite",
            check=_check,
            recognizes=_recognizes,
            contents=_contents,
            as_written=_as_written,
            read_options=_READ_OPTIONS,
            normal_form=("restate_attributes",),
            scopes=("functions", "states", "signatures"),
        )
    ]


def _decompose_recurrence(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    from qconvert.formats.tflite.recurrences import run

    return run(graph, target)


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    summary = "LSTM, GRU and RNN that TFLite has no operator for become loops over their steps"
    return [Pass("decompose_recurrence", summary, _decompose_recurrence, exact=False, within=1e-5, after=("fuse_recurrence",))]


@hookimpl
def qconvert_operators(format: str, direction: str) -> Mapping[str, Callable[..., Any]]:
    if format != "tflite":
        return {}
    from qconvert.formats.tflite.ops import READERS, WRITERS

    tables: dict[str, Mapping[str, Callable[..., Any]]] = {"read": READERS, "write": WRITERS}
    return tables.get(direction, {})
