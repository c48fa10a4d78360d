"""Graph -> .qgraph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import UnsupportedError
from qconvert.formats.qgraph.document import to_document
from qconvert.graph import Graph

__all__ = ["STORED_AS", "write"]

#: Types that safetensors does not have -> the one-byte type under which they are stored; the document says what they are.
STORED_AS = {"int2": "int8", "int4": "int8", "uint4": "uint8"}


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> None:
    """Writes the graph; `options` may hold "provenance" (str -> str), which joins the metadata."""
    from safetensors.numpy import save_file

    arrays = {}
    for tensor in graph.constants():
        assert tensor.data is not None
        if tensor.dtype == "string":
            raise UnsupportedError("constant strings cannot be stored", where=repr(tensor.name))
        data = tensor.data.astype(STORED_AS[tensor.dtype]) if tensor.dtype in STORED_AS else tensor.data
        arrays[tensor.name] = np.ascontiguousarray(data)
    document = to_document(graph)
    document["metadata"].update(options.get("provenance") or {})
    save_file(arrays, path, metadata={"qgraph": json.dumps(document)})
