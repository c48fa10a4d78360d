"""GGUF: the weights of a network in blocks of 32 with a scale each, next to a float network that has the operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from qconvert.plugin import Change, CheckpointSource, Format, Graph, Option, Repacked, hookimpl

#: The version of qconvert's plugin interface that this was made for.
QCONVERT_API = "1.0"

_NAMES = Option(
    "names", str, "", "GGUF: a JSON object, name in the network -> name in the .gguf file; others have one name in both.", is_file=True
)
_READ_OPTIONS = (
    Option("graph", str, "", "the float network whose weights the file has.", is_file=True, about_graph=True),
    _NAMES,
    Option("rest", str, "refuse", "GGUF: tensors that the network lacks: refuse or ignore.", ("refuse", "ignore")),
    Option("resemblance", str, "demand", "GGUF: weights far from the network's own: demand (an error) or waive.", ("demand", "waive")),
)
_WRITE_OPTIONS = (
    _NAMES,
    Option("template", str, "", "GGUF, from a checkpoint: a .gguf file of the same model, for all but its weights.", is_file=True),
    Option("requantize", bool, False, "Checkpoints: take the nearest weights where the result has no room for the source's."),
    Option("rounding", str, "refuse", "GGUF: scales and minima that float16 does not hold: refuse or round.", ("refuse", "round")),
)


def _read(path: Path, options: Mapping[str, Any]) -> Graph:
    from qconvert_gguf.reader import read

    return read(path, options)


def _write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    from qconvert_gguf.writer import write

    return write(graph, path, options)


def _repack(source: CheckpointSource, path: Path, options: Mapping[str, Any], progress: Callable[[str, int, int], None]) -> Repacked:
    from qconvert_gguf.repacking import repack

    return repack(source, path, options, progress)


def _open_checkpoint(path: Path) -> CheckpointSource:
    from qconvert_gguf.checkpoint import open_checkpoint

    return open_checkpoint(path)


def _contents(path: Path) -> Mapping[str, Any]:
    from qconvert_gguf.container import contents

    return contents(path)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "gguf",
            (".gguf",),
            "GGUF: weights in blocks, for a float network that has the operators",
            read=_read,
            write=_write,
            open_checkpoint=_open_checkpoint,
            repack=_repack,
            recognizes=lambda start: start[:4] == b"GGUF",
            contents=_contents,
            read_options=_READ_OPTIONS,
            write_options=_WRITE_OPTIONS,
        )
    ]
