"""The contents of a .gguf file. Every count and offset is compared with the file's size before it is used.

The layout is that of ggml's docs/gguf.md, versions 2 and 3, little-endian. The gguf package reads files too, but trusts them: a count of
2^60 keeps it busy for ever, and an offset after the end gives an array of another size.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import Array, InvalidModelError, UnsupportedError, map_file, require_package

#: The package of the types, as require_package() takes it.
GGUF = "gguf", "gguf>=0.17,<1", "knows the types of .gguf files"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
#: Sizes of numbers by the file's codes of types: struct's letter each. 8 is a text, 9 an array.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
#: The least bytes of an entry, for the check of a count.
_LEAST_FIELD, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8
#: ggml's limits: GGML_MAX_DIMS, and GGML_MAX_NAME less the terminating zero.
MOST_AXES, LONGEST_NAME = 4, 63
#: Types of plain numbers, and numpy's.
PLAIN = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_MOST_TEXTS, _LARGEST_ALIGNMENT = 2**24, 2**20


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in the file.

    Attributes:
        name: its name.
        type: ggml's name of its type, such as "Q4_0".
        shape: sizes as numpy has them, the last one innermost: the reverse of the file's.
        start: its first byte.
        size: its bytes.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    size: int


class _Cursor:
    """A place in the file; nothing after the end is read."""

    def __init__(self, data: Any) -> None:
        self.data, self.at = memoryview(data), 0

    @property
    def bytes_left(self) -> int:
        return len(self.data) - self.at

    def skip(self, size: int, what: str) -> int:
        if size > self.bytes_left:
            raise InvalidModelError(
                f"the file ends within {what}: {size} bytes are expected at byte {self.at}, and the file has {len(self.data)}",
                rule="file-too-short",
            )
        self.at += size
        return self.at - size

    def number(self, letter: str, what: str) -> Any:
        return struct.unpack_from(f"<{letter}", self.data, self.skip(struct.calcsize(f"<{letter}"), what))[0]

    def count(self, least: int, what: str) -> int:
        """Return a number of entries, each of at least `least` bytes."""
        found = int(self.number("Q", what))
        if found * least > self.bytes_left:
            raise InvalidModelError(f"the file is too short for {found} {what}", rule="file-too-short")
        return found

    def text(self, what: str) -> str:
        size = int(self.number("Q", what))
        start = self.skip(size, what)
        try:
            return bytes(self.data[start : self.at]).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidModelError(f"{what} is not UTF-8: {error.reason} at byte {start + error.start}", rule="not-utf8") from error


def read_header(data: Any) -> tuple[dict[str, Any], list[Stored]]:
    """Return the metadata of a file without arrays, and its tensors in the file's order.

    Args:
        data: its bytes, mapped.

    Raises:
        InvalidModelError: it is damaged.
        UnsupportedError: it is of another version, big-endian, or has a type that the gguf package does not know.
    """
    cursor = _Cursor(data)
    if bytes(cursor.data[:4]) != b"GGUF":
        raise InvalidModelError("is not a GGUF file: it does not begin with 'GGUF'", rule="not-this-format")
    require_package(*GGUF)
    cursor.at = 4
    version = int(cursor.number("I", "the version"))
    if version not in _VERSIONS:
        is_big = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        raise UnsupportedError(
            f"is of version {version}" if not is_big else "is big-endian",
            remedy="Versions 2 and 3, little-endian, are read.",
            rule="version-not-covered",
        )
    tensors, fields = cursor.count(0, "tensors"), cursor.count(_LEAST_FIELD, "fields")
    if tensors * _LEAST_TENSOR > cursor.bytes_left:
        raise InvalidModelError(f"the file is too short for {tensors} tensors", rule="file-too-short")
    metadata: dict[str, Any] = {}
    for _ in range(fields):
        key = cursor.text("the name of a field")
        if key in metadata:
            raise InvalidModelError("the field occurs twice", where=repr(key), rule="duplicate-name")
        metadata[key] = _value(cursor, int(cursor.number("I", f"the field {key!r}")), f"the field {key!r}")
    found = [_tensor(cursor) for _ in range(tensors)]
    return metadata, _locate_tensors(found, cursor, _alignment(metadata))


def _value(cursor: _Cursor, code: int, what: str) -> Any:
    """The value of a field; None for an array, which is skipped."""
    if code == _TEXT:
        return cursor.text(what)
    if code in _NUMBERS:
        return cursor.number(_NUMBERS[code], what)
    if code != _ARRAY:
        raise InvalidModelError(f"{what} has the type {code}, which GGUF does not define", rule="unknown-type")
    inner, size = int(cursor.number("I", what)), int(cursor.number("Q", what))
    if inner in _NUMBERS:
        cursor.skip(size * struct.calcsize(f"<{_NUMBERS[inner]}"), what)
    elif inner != _TEXT:
        raise UnsupportedError(f"{what} is an array of the type {inner}, which is not covered", rule="form-not-covered")
    elif size * 8 > cursor.bytes_left or size > _MOST_TEXTS:
        raise InvalidModelError(f"the file is too short for {size} texts in {what}", rule="file-too-short")
    else:
        for _ in range(size):
            cursor.skip(int(cursor.number("Q", what)), what)
    return None


def _alignment(metadata: Mapping[str, Any]) -> int:
    from gguf.constants import GGUF_DEFAULT_ALIGNMENT

    found = metadata.get(_ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
    if type(found) is not int or not 0 < found <= _LARGEST_ALIGNMENT or found & (found - 1):
        raise InvalidModelError(
            f"the alignment is {found!r}; GGUF requires a power of two up to {_LARGEST_ALIGNMENT}", rule="malformed-alignment"
        )
    return found


def _tensor(cursor: _Cursor) -> Stored:
    """Return a tensor's entry; its start is relative to the data section."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    name = cursor.text("the name of a tensor")
    where = repr(name)
    if not name:
        raise InvalidModelError("a tensor has no name", rule="name-missing")
    axes = int(cursor.number("I", where))
    if not 1 <= axes <= MOST_AXES:
        raise InvalidModelError(f"the number of axes is {axes}; GGUF requires 1 to {MOST_AXES}", where=where, rule="wrong-rank")
    shape = tuple(int(cursor.number("Q", where)) for _ in range(axes))[::-1]
    code, start = int(cursor.number("I", where)), int(cursor.number("Q", where))
    try:
        kind = GGMLQuantizationType(code)
    except ValueError as error:
        raise UnsupportedError(
            f"the type is number {code} of ggml, which this version of the package gguf does not know", where=where, rule="unknown-type"
        ) from error
    block, size = GGML_QUANT_SIZES[kind]
    if not all(shape) or shape[-1] % block:
        raise InvalidModelError(
            f"the shape is {list(shape)}; {kind.name} requires whole blocks of {block}", where=where, rule="blocks-do-not-fit"
        )
    return Stored(name, kind.name, shape, start, math.prod(shape) // block * size)


def _locate_tensors(tensors: list[Stored], cursor: _Cursor, alignment: int) -> list[Stored]:
    """Return the tensors with their offsets in the file. Raise InvalidModelError unless they are aligned, in the file, and disjoint."""
    base = cursor.at + -cursor.at % alignment
    twice = next((name for name, count in Counter(tensor.name for tensor in tensors).items() if count > 1), "")
    if twice:
        raise InvalidModelError("the tensor occurs twice", where=repr(twice), rule="duplicate-name")
    end = 0
    for tensor in sorted(tensors, key=lambda item: item.start):
        if tensor.start % alignment or tensor.start < end or base + tensor.start + tensor.size > len(cursor.data):
            raise InvalidModelError(
                f"the data begin at byte {tensor.start} and have {tensor.size} bytes: they are not aligned, overlap another tensor, "
                "or run past the end of the file",
                where=repr(tensor.name),
                rule="malformed-offset",
            )
        end = tensor.start + tensor.size
    return [Stored(item.name, item.type, item.shape, base + item.start, item.size) for item in tensors]


def tensor_bytes(data: Any, tensor: Stored) -> Array:
    """Return the bytes of a tensor, uint8, a view on the file."""
    return np.frombuffer(data, np.uint8, tensor.size, tensor.start)


def decode_numbers(data: Array, type: str) -> Array:
    """Decode the numbers of a tensor with a type of PLAIN; BF16 becomes float32, whose upper half it is."""
    numbers = np.asarray(data.view(np.dtype(PLAIN[type])))
    return (numbers.astype(np.uint32) << 16).view(np.float32) if type == "BF16" else numbers


def contents(path: Path) -> Mapping[str, Any]:
    """Return the general metadata of a file, and the number of tensors of each type."""
    metadata, tensors = read_header(map_file(path))
    said = {key: value for key, value in metadata.items() if key.startswith("general.") and isinstance(value, str | int | float)}
    return {**said, **{f"tensors of {name}": count for name, count in sorted(Counter(item.type for item in tensors).items())}}
