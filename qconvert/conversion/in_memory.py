"""Models in memory, graphs and bytes, wherever a file is asked for, and graphs as files that a runtime loads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qconvert.conversion.normalizing import chosen_target, normalize
from qconvert.conversion.saving import save
from qconvert.errors import OptionError, QConvertError, RuntimeRefusedError
from qconvert.files.system import temporary_folder
from qconvert.graph import Graph
from qconvert.graph.metadata import SOURCE_FORMAT
from qconvert.plugins import Format, format_named, formats, runtimes

#: Where the graph's own format has no runtime, or cannot be written.
_OTHERWISE = "onnx"


def written_copy(graph: Graph, folder: Path, stem: str) -> tuple[Path, Format]:
    """Writes a graph into a folder, in its source format and unchanged if possible.

    Args:
        graph: what is written.
        folder: an empty folder.
        stem: of the file's name.

    Raises:
        QConvertError: no format with a runtime can hold it; the error is that of the last one.
    """
    error: QConvertError = RuntimeRefusedError("no runtime runs the formats that this could be written as", rule="no-runtime")
    for number, (writer, target) in enumerate(_candidate_formats(graph)):
        place = folder / str(number)
        place.mkdir()
        path = place / f"{stem}{writer.suffixes[0]}"
        try:
            fitted, _ = normalize(graph, chosen_target(writer, target)) if target else (graph, ())
            save(fitted, path, writer.name)
        except QConvertError as problem:
            error = problem
        else:
            return path, writer
    raise error


def _candidate_formats(graph: Graph) -> Iterator[tuple[Format, str]]:
    """Formats and targets, the one that changes least first."""
    runs = {name for item in runtimes().values() for name in item.formats}
    for name in dict.fromkeys((graph.metadata.get(SOURCE_FORMAT, ""), _OTHERWISE)):
        writer = formats().get(name)
        if writer is None or writer.write is None or name not in runs:
            continue
        if not writer.own_target:
            yield writer, ""
        if target := writer.own_target or writer.default_target:
            yield writer, target


#: A model: its file, its canonical graph, or the content of its file.
Model = str | Path | Graph | bytes

_LONGEST = 60


def model_title(model: Model) -> str:
    """What a model is called in reports and errors: a file by its path."""
    if isinstance(model, str | Path):
        return str(model)
    return f"the graph {model.name!r}" if isinstance(model, Graph) else "the bytes"


@contextmanager
def as_file(model: Model, format: str, *, runs: bool = False) -> Iterator[Path]:
    """The file of a model; of one in memory a temporary file, which is gone with the block.

    Args:
        model: a file, a graph, or bytes.
        format: the name of the format of bytes; "" where they say it themselves.
        runs: whether a runtime has to take the file of a graph; else it is a .qgraph file.

    Raises:
        OptionError: bytes whose format nobody names, or no model at all.
        QConvertError: the graph is not valid, or no format with a runtime holds it.
    """
    if isinstance(model, str | Path):
        path = Path(model)
        if os.path.isdir(path):  # which says no to a name that no system takes
            from qconvert.checkpoints.safetensors import find_checkpoint

            path = find_checkpoint(path)
        yield path
        return
    if not isinstance(model, Graph | bytes | bytearray | memoryview):
        raise OptionError(
            f"the model is of type {type(model).__name__}",
            remedy="Give a path, a qconvert.Graph, or bytes with their format.",
            rule="not-a-model",
        )
    with temporary_folder() as folder:
        path = folder
        try:
            path = _graph_file(model, folder, runs) if isinstance(model, Graph) else _bytes_file(bytes(model), format, folder)
            yield path
        except QConvertError as error:
            if error.file.startswith(str(folder)):
                error.file = model_title(model)
            error.remedy = error.remedy.replace(str(path), path.name)
            raise


@contextmanager
def as_files(source: Model, result: Model, formats: tuple[str, str]) -> Iterator[tuple[tuple[Path, Path], tuple[str, str]]]:
    """The files of a source and its result, which runtimes take, and the names of their formats, "" where the file of a graph says it;
    see as_file()."""
    with as_file(source, formats[0], runs=True) as before, as_file(result, formats[1], runs=True) as after:
        first, second = ("" if isinstance(model, Graph) else name for model, name in zip((source, result), formats, strict=True))
        yield (before, after), (first, second)


def _graph_file(graph: Graph, folder: Path, runs: bool) -> Path:
    stem = re.sub(r"[^\w.-]+", "_", graph.name, flags=re.ASCII).strip("._")[:_LONGEST] or "graph"
    if runs:
        return written_copy(graph, folder, stem)[0]
    save(graph, folder / f"{stem}.qgraph", "qgraph")
    return folder / f"{stem}.qgraph"


def _bytes_file(content: bytes, format: str, folder: Path) -> Path:
    found = format or next((item.name for item in formats().values() if item.recognizes is not None and item.recognizes(content[:64])), "")
    if not found:
        raise OptionError("the format of the bytes is not given", remedy="Name it, such as format='tflite'.", rule="format-missing")
    path = folder / f"model{next(iter(format_named(found).suffixes), '')}"
    path.write_bytes(content)
    return path
