""".qgraph files, read and written. Constants are read as views on the memory-mapped file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.checkpoints.safetensors import read_tensors
from qconvert.errors import FileAccessError, InvalidModelError, UnsupportedError
from qconvert.files.documents import json_of
from qconvert.formats.qgraph.document import STORED_AS, from_document, stored_arrays, to_document
from qconvert.graph import Array, Graph


def read(path: Path) -> Graph:
    """The graph in a .qgraph file.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is damaged.
        UnsupportedError: an array is of a type that is not covered.
    """
    arrays, metadata = read_tensors(path)
    if "qgraph" not in metadata:
        raise InvalidModelError("is a safetensors file without a graph in its metadata", rule="not-this-format")
    return from_document(json_of(metadata["qgraph"], "the graph document"), arrays)


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> None:
    """Writes the graph to `path`.

    Args:
        graph: what to write.
        path: the file.
        options: "provenance" (str -> str) joins the metadata.

    Raises:
        FileAccessError: the file cannot be written.
        UnsupportedError: a constant string is no text, or a constant's type is unknown.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {}
    for key, tensor in stored_arrays(graph).items():
        assert tensor.data is not None
        if tensor.dtype == "unknown":
            raise UnsupportedError(
                "a constant of an unknown type cannot be stored", where=f"tensor {tensor.name!r}", rule="type-not-storable"
            )
        arrays[key] = np.asarray(_cast_for_storage(tensor.dtype, tensor.data), order="C")
    for tensor in graph.constants():
        if tensor.dtype == "string" and not all(isinstance(value, str) for value in tensor.data.flat):  # type: ignore[union-attr]
            raise UnsupportedError(
                "a constant of strings that are not text cannot be stored", where=f"tensor {tensor.name!r}", rule="text-not-storable"
            )
    document = to_document(graph)
    document["metadata"].update(options.get("provenance") or {})
    try:
        path.touch()
        mode = path.stat().st_mode  # which others may read, as a file of any other format: safetensors makes one for its owner alone
        save_file(arrays, path, metadata={"qgraph": json.dumps(document, allow_nan=False)})
        path.chmod(mode)
    except (SafetensorError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise FileAccessError(f"cannot be written: {reason or error}", file=str(path), rule="file-not-written") from error


def _cast_for_storage(dtype: str, data: Array) -> Array:
    """The data in a type that safetensors has."""
    if dtype == "float4e2m1":
        return data.view(np.uint8) & np.uint8(15)
    return data.astype(STORED_AS[dtype]) if dtype in STORED_AS else data
