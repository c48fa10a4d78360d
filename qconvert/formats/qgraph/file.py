""".qgraph files, read and written. Constants are read as views on the memory-mapped file."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import FileAccessError, InvalidModelError, UnsupportedError
from qconvert.files import map_file
from qconvert.files.documents import json_of
from qconvert.formats.qgraph.document import MAX_RANK, MOST_ELEMENTS, STORED_AS, from_document, stored_arrays, to_document
from qconvert.graph import Array, Graph, numpy_dtype

_LARGEST_HEADER = 100_000_000  # safetensors' own limit
_TYPES = {
    "BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32",
    "U32": "uint32", "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8e4m3fn", "F8_E4M3FNUZ": "float8e4m3fnuz", "F8_E5M2": "float8e5m2",
    "F8_E5M2FNUZ": "float8e5m2fnuz",
}  # fmt: skip


def read(path: Path) -> Graph:
    """The graph in a .qgraph file.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is damaged.
    """
    data = map_file(path)
    header, start = _header(data)
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("qgraph"), str):
        raise InvalidModelError("is a safetensors file without a graph in its metadata", rule="not-this-format")
    return from_document(json_of(metadata["qgraph"], "the graph document"), _arrays(data, start, header))


def _header(data: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The JSON in front, and where the data begin."""
    if len(data) < 8:
        raise InvalidModelError(f"the size of the file is {len(data)}; a safetensors header has at least 8 bytes", rule="damaged-header")
    length = int.from_bytes(data[:8], "little")
    if length > min(len(data) - 8, _LARGEST_HEADER):
        raise InvalidModelError(f"the header claims {length} bytes in a file of {len(data)}", rule="damaged-header")
    header = json_of(data[8 : 8 + length], "the header")
    if not isinstance(header, dict):
        raise InvalidModelError("the header is not a JSON object", rule="damaged-header")
    return header, 8 + length


def _arrays(data: mmap.mmap, start: int, header: dict[str, Any]) -> dict[str, Array]:
    """Every array as a view. Their bytes follow each other without gap or overlap and fill the file."""
    entries = {key: _entry(key, value) for key, value in header.items()}
    position = 0
    for key, (_, _, first, last) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if first != position:
            raise InvalidModelError(
                f"the bytes start at {first}, the bytes before them end at {position}", where=repr(key), rule="damaged-header"
            )
        position = last
    if position != len(data) - start:
        raise InvalidModelError(f"the header describes {position} bytes of data, the file holds {len(data) - start}", rule="damaged-header")
    return {key: _view(data, key, dtype, shape, start + first) for key, (dtype, shape, first, _) in entries.items()}


def _entry(key: str, value: Any) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """Type, shape and byte range of one array; the range must be as long as type and shape say."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise InvalidModelError(
            "the entry in the header does not consist of dtype, shape and data_offsets", where=repr(key), rule="damaged-header"
        )
    name, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if not isinstance(name, str) or name not in _TYPES:
        raise InvalidModelError(f"the type {name!r} is unknown", where=repr(key), rule="unknown-type")
    if any(type(number) is not int or number < 0 for number in numbers) or len(offsets) != 2:
        raise InvalidModelError("shape or data_offsets is not a list of sizes", where=repr(key), rule="damaged-header")
    if len(shape) > MAX_RANK or math.prod(size for size in shape if size) > MOST_ELEMENTS:
        reason = f"the rank is {len(shape)}; at most {MAX_RANK} dimensions and 2^40 elements are allowed"
        raise InvalidModelError(reason, where=repr(key), rule="too-many-elements")
    dtype, (first, last) = numpy_dtype(_TYPES[name]), offsets
    if last - first != math.prod(shape) * dtype.itemsize:
        raise InvalidModelError(f"bytes {first} to {last} do not hold {shape} of {dtype}", where=repr(key), rule="damaged-header")
    return dtype, tuple(shape), first, last


def _view(data: mmap.mmap, key: str, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> Array:
    count = math.prod(shape)
    if not count:
        return np.zeros(shape, dtype)
    stored = np.frombuffer(data, np.uint8, count * dtype.itemsize, offset)
    if dtype == np.bool_ and (stored > 1).any():
        raise InvalidModelError("a value of a bool tensor is neither 0 nor 1", where=repr(key), rule="value-outside-type")
    return stored.view(dtype).reshape(shape)


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
