""".qgraph -> Graph. Constants are views on the memory-mapped file.

safetensors' own numpy loader copies; its header is simple (https://github.com/huggingface/safetensors#format) and is read here:
8 bytes of length, JSON with type, shape and byte range of each array, then the data.
"""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.files import map_file
from qconvert.formats.qgraph.document import from_document
from qconvert.formats.qgraph.writer import STORED_AS
from qconvert.graph import Array, Graph, numpy_dtype

__all__ = ["read"]

_LARGEST_HEADER = 2**28
_TYPES = {
    "BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
}  # fmt: skip


def read(path: Path) -> Graph:
    """The graph in a .qgraph file; raises InvalidModelError if the file is damaged, and the graph is validated."""
    data = map_file(path)
    header, start = _header(data)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not isinstance(metadata.get("qgraph"), str):
        raise InvalidModelError("a safetensors file without a graph in its metadata")
    document = _json(metadata["qgraph"], "the graph document")
    arrays = {name: _array(data, start, name, entry) for name, entry in header.items()}
    names = document.get("tensors", []) if isinstance(document, dict) else []
    for item in names if isinstance(names, list) else []:
        if isinstance(item, dict) and item.get("dtype") in STORED_AS and item.get("name") in arrays:
            arrays[item["name"]] = arrays[item["name"]].view(numpy_dtype(item["dtype"]))
    graph = from_document(document, arrays)
    graph.validate()
    return graph


def _header(data: mmap.mmap) -> tuple[dict[str, Any], int]:
    if len(data) < 8:
        raise InvalidModelError(f"the file has {len(data)} bytes, too few for a header")
    length = int.from_bytes(data[:8], "little")
    if length > min(len(data) - 8, _LARGEST_HEADER):
        raise InvalidModelError(f"the header claims {length} bytes of {len(data)}")
    header = _json(data[8 : 8 + length], "the header")
    if not isinstance(header, dict):
        raise InvalidModelError("the header is no JSON object")
    return header, 8 + length


def _json(text: str | bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidModelError(f"{what} is no JSON: {error}") from error


def _array(data: mmap.mmap, start: int, name: str, entry: Any) -> Array:
    """One array as a view; its bytes must lie inside the file and be as many as type and shape say."""
    try:
        dtype, shape = numpy_dtype(_TYPES[entry["dtype"]]), tuple(int(size) for size in entry["shape"])
        first, last = (int(value) for value in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidModelError(f"its entry in the header is damaged: {error}", where=repr(name)) from error
    count = math.prod(shape)
    if any(size < 0 for size in shape) or not 0 <= first <= last <= len(data) - start or last - first != count * dtype.itemsize:
        raise InvalidModelError(f"bytes {first} to {last} do not hold {shape} of {dtype}", where=repr(name))
    return np.frombuffer(data, dtype, count, start + first).reshape(shape) if count else np.zeros(shape, dtype)
