"""Models in memory, graphs and bytes, wherever a file is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qconvert.checkpoints.safetensors import find_checkpoint
from qconvert.conversion.copies import written_copy
from qconvert.conversion.saving import save
from qconvert.errors import OptionError, QConvertError
from qconvert.files.temporary import temporary_folder
from qconvert.graph import Graph
from qconvert.plugins import format_named, formats

__all__ = ["Model", "as_file", "model_title"]

#: A model: its file, its canonical graph, or the content of its file.
Model = str | Path | Graph | bytes

_LONGEST = 60


def model_title(model: Model) -> str:
    """What a model is called in reports and errors: a file by its path."""
    if isinstance(model, str | Path):
        return str(model)
    return f"the graph {model.name!r}" if isinstance(model, Graph) else "the bytes"


@contextmanager
def as_file(model: Model, format: str = "", *, runs: bool = False) -> Iterator[Path]:
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
        yield find_checkpoint(Path(model))
        return
    if not isinstance(model, Graph | bytes | bytearray | memoryview):
        raise OptionError(
            f"the model is a {type(model).__name__}",
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
