"""Tensors in .safetensors files (https://github.com/huggingface/safetensors#format), read as views on them and written one after another.

A checkpoint in several files has an index next to them, which maps tensors to files (model.safetensors.index.json of Hugging Face).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array, canonical_dtype, numpy_dtype
from qconvert.checkpoints.weight import to_row_major
from qconvert.errors import FileAccessError, InternalError, InvalidModelError, UnsupportedError
from qconvert.files import map_file
from qconvert.files.documents import json_next_to, json_of
from qconvert.files.mapped import copy_mapped, release_pages

_LARGEST_HEADER = 100_000_000  # safetensors' own limit
_LARGEST_INDEX, _MOST_FILES, _MOST_TENSORS = 200_000_000, 10_000, 1_000_000
_MAX_RANK = 64
_TYPES = {
    "BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32", "I64": "int64",
    "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8e4m3fn", "F8_E4M3FNUZ": "float8e4m3fnuz", "F8_E5M2": "float8e5m2",
    "F8_E5M2FNUZ": "float8e5m2fnuz",
}  # fmt: skip
_NAMES = {name: stored for stored, name in _TYPES.items()}
_SUFFIX, _INDEX = ".safetensors", ".safetensors.index.json"
#: Bytes of a tensor's entry in a header, without its name.
_ENTRY = 200
#: Tensors that wait to be written.
_WAITING = 4
#: Bytes of a matrix that are turned at once.
_AT_ONCE = 2**20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a checkpoint.

    Attributes:
        tensors: by name, views on the mapped files.
        places: tensor -> the name of the file that holds it.
        metadata: texts that the files' headers have.
        is_sharded: whether an index lists its files.
    """

    tensors: Mapping[str, Array]
    places: Mapping[str, str]
    metadata: Mapping[str, str]
    is_sharded: bool = False


def is_safetensors(path: Path) -> bool:
    """Whether a file begins with the length of a JSON object and that object."""
    start = bytes(memoryview(map_file(path))[:9])
    return len(start) == 9 and start[8:] == b"{" and 2 <= int.from_bytes(start[:8], "little") <= _LARGEST_HEADER


def is_checkpoint(path: Path) -> bool:
    """Whether a path is that of a .safetensors file; one of another suffix holds a graph in such a file."""
    return path.suffix.lower() == _SUFFIX and os.path.isfile(path) and is_safetensors(path)


def find_checkpoint(path: Path) -> Path:
    """The file that stands for the checkpoint in a folder: the only one, or the first that an index lists; `path` where there is none."""
    try:
        files = sorted(item for item in path.glob(f"*{_SUFFIX}") if item.is_file()) if path.is_dir() else []
        return files[0] if len(files) == 1 else next((item for item in files if _index(item)), path)
    except (OSError, ValueError):
        return path


def read_checkpoint(path: Path) -> Checkpoint:
    """The tensors of a .safetensors file, with those of all files of its checkpoint where an index next to it lists it.

    Raises:
        FileAccessError: a file cannot be read, or is missing.
        InvalidModelError: a file is damaged, the index leads outside of its folder, or a tensor is not where it says.
        UnsupportedError: a tensor is of a type that is not covered.
    """
    places = _index(path)
    if not places:
        tensors, metadata = read_tensors(path)
        return Checkpoint(tensors, dict.fromkeys(tensors, path.name), metadata)
    names = sorted(set(places.values()))
    if len(names) > _MOST_FILES:
        raise InvalidModelError(f"the index lists {len(names)} files; at most {_MOST_FILES} are read", rule="too-many-files")
    found: dict[str, Array] = {}
    metadata = {}
    where: dict[str, str] = {}
    for name in names:
        file = path.parent / name
        if Path(name).name != name or name in ("", ".", ".."):
            raise InvalidModelError(f"the index leads to {name!r}; a file of its own folder is required", rule="outside-folder")
        if not file.is_file():
            raise FileAccessError("the index lists the file, which is not there", file=str(file), rule="file-missing")
        tensors, more = read_tensors(file)
        lacking = [tensor for tensor, place in places.items() if place == name and tensor not in tensors]
        if lacking:
            raise InvalidModelError(
                f"the index says that {name} has the tensor, which it lacks", where=repr(lacking[0]), rule="tensor-missing"
            )
        if doubled := next((tensor for tensor in tensors if tensor in found), ""):
            raise InvalidModelError(f"{where[doubled]} and {name} have a tensor of this name", where=repr(doubled), rule="duplicate-name")
        found.update(tensors)
        where.update(dict.fromkeys(tensors, name))
        metadata.update(more)
    return Checkpoint(found, where, metadata, True)


def _index(path: Path) -> dict[str, str]:
    """Tensor -> the name of its file, by the index that lists `path`; empty where there is none."""
    for file in sorted(path.parent.glob(f"*{_INDEX}")):
        found = json_next_to(file, _LARGEST_INDEX)
        places = found.get("weight_map") if isinstance(found, dict) else None
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise InvalidModelError(f"{file.name} is no index: weight_map is to name a file for each tensor", rule="damaged-config")
        if not places:
            raise InvalidModelError(
                f"weight_map is empty in {file.name}; an index of a checkpoint requires the file of each tensor",
                remedy="Get the index that belongs to these files, or remove it.",
                rule="damaged-config",
            )
        if path.name in places.values():
            return places
    return {}


def read_tensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors of a .safetensors file by name, views on the mapped file, and the texts in its header.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is damaged.
        UnsupportedError: a tensor is of a type that is not covered.
    """
    content = memoryview(map_file(path))
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _LARGEST_HEADER):
        raise InvalidModelError(f"the header claims {length} bytes in a file of {len(content)}", rule="damaged-header")
    header, data = json_of(bytes(content[8 : 8 + length]), "the header"), content[8 + length :]
    try:
        if len(header) > _MOST_TENSORS:
            raise InvalidModelError(f"the header lists {len(header)} tensors; at most {_MOST_TENSORS} are read", rule="too-many-tensors")
        "".join(header).encode()  # halves of surrogate pairs are no names
        metadata = header.pop("__metadata__", None) or {}  # MLX writes null where it is given none
        tensors = {name: _tensor(data, name, entry) for name, entry in header.items()}
        places = sorted(entry["data_offsets"] for entry in header.values())
        if [first for first, _ in places] + [len(data)] != [0] + [last for _, last in places]:
            raise ValueError(f"the tensors do not fill the {len(data)} bytes after it, one after another")
        return tensors, {str(key): str(text) for key, text in metadata.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidModelError(f"the header is damaged: {type(error).__name__} {error}", rule="damaged-header") from error


def _tensor(content: memoryview, name: str, entry: Mapping[str, Any]) -> Array:
    shape, (first, last) = entry["shape"], entry["data_offsets"]
    if entry["dtype"] not in _TYPES:
        raise UnsupportedError(f"the type {str(entry['dtype'])[:20]!r} is not covered", where=name, rule="dtype-not-covered")
    dtype = numpy_dtype(_TYPES[entry["dtype"]])
    if len(shape) > _MAX_RANK or any(type(number) is not int or not 0 <= number < 2**62 for number in (*shape, first, last)):
        raise ValueError(f"{name!r} has sizes {shape} at {first} to {last}")
    size = math.prod(shape) * dtype.itemsize
    if last - first != size or last > len(content):
        raise ValueError(f"{name!r} needs {size} bytes, and has {first} to {last} of {len(content)}")
    stored = np.frombuffer(content, np.uint8, size, first) if size else np.zeros(0, np.uint8)
    if dtype == np.bool_ and (stored > 1).any():
        raise InvalidModelError("a value of a bool tensor is neither 0 nor 1", where=repr(name), rule="value-outside-type")
    return stored.view(dtype).reshape(shape)


class Writer:
    """A .safetensors file that tensors are added to, written by a thread meanwhile; its header goes before them at the end.

    Room for the header is left at the start of the file and filled with spaces, as the format allows.

    Args:
        path: of the file.
        names: that tensors may get, at most: they say how much room the header needs.
        metadata: texts of the header.
        pool: of one thread.
    """

    def __init__(self, path: Path, names: list[str], metadata: Mapping[str, str], pool: ThreadPoolExecutor) -> None:
        self._path, self._pool = path, pool
        self._header: dict[str, Any] = {"__metadata__": dict(metadata)}
        room = len(json.dumps(self._header)) + sum(len(json.dumps(name)) + _ENTRY for name in names)
        self._room = -(-room // 8) * 8
        self._size = 0
        self._waiting: list[Future[None]] = []
        path.write_bytes(bytes(8 + self._room))

    def add(self, name: str, tensor: Array) -> None:
        """Write a tensor, which stays as it is until the file is finished."""
        if name in self._header:
            raise InternalError("two tensors of a .safetensors file get one name", where=repr(name), rule="duplicate-name")
        self._header[name] = {
            "dtype": _NAMES[canonical_dtype(tensor.dtype)], "shape": list(tensor.shape),
            "data_offsets": [self._size, self._size + tensor.nbytes],
        }  # fmt: skip
        if len(self._waiting) == _WAITING:
            self._waiting.pop(0).result()
        self._waiting.append(self._pool.submit(self._write, tensor, 8 + self._room + self._size))
        self._size += tensor.nbytes

    def _write(self, tensor: Array, place: int) -> None:
        """Write the numbers of a tensor: a piece of a file is copied by the system, a matrix that lies in columns is turned as many rows at
        a time as stay in a cache.
        """
        rows = tensor if tensor.ndim == 2 and not tensor.flags.c_contiguous else np.ascontiguousarray(tensor).reshape(1, -1)
        step = max(1, _AT_ONCE * len(rows) // max(rows.nbytes, 1))
        with self._path.open("r+b") as stream:
            stream.seek(place)
            if not copy_mapped(tensor, stream):
                for first in range(0, len(rows) if rows.size else 0, step):
                    stream.write(to_row_major(rows[first : first + step]).reshape(-1).view(np.uint8).data)
        release_pages(tensor)

    def finish(self) -> None:
        """Write the header, once all tensors are."""
        for future in self._waiting:
            future.result()
        text = json.dumps(self._header, separators=(",", ":")).encode()
        with self._path.open("r+b") as stream:
            stream.write(self._room.to_bytes(8, "little") + text.ljust(self._room))


@contextmanager
def written_file(path: Path, names: list[str], metadata: Mapping[str, str]) -> Iterator[Writer]:
    """A Writer of a file, finished when the block succeeds."""
    with ThreadPoolExecutor(1) as pool:
        writer = Writer(path, names, metadata, pool)
        yield writer
        writer.finish()
