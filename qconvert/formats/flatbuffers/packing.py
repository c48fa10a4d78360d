"""Packs the objects of a schema into a FlatBuffer (https://flatbuffers.dev/internals), byte by byte as Google's Python library does.

A FlatBuffer is built from its end: what is referred to is written before what refers to it. Places are therefore counted from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Any

import numpy as np

from qconvert.formats.flatbuffers.schema import SCALARS, Field, Schema, TableObject

#: FlatBuffers address with signed 32-bit offsets.
LARGEST = 2**31 - 1
_U16, _I32, _U32 = (Struct(code).pack for code in ("<H", "<i", "<I"))
_PADDING = tuple(bytes(size) for size in range(16))


class TooLargeError(Exception):
    """The model does not fit into a FlatBuffer."""


@dataclass(frozen=True, slots=True)
class DeferredBytes:
    """Bytes of a vector that are made as they are written.

    Attributes:
        size: how many they are.
        pieces: makes them, in their order.
    """

    size: int
    pieces: Callable[[], Iterable[bytes | memoryview]]

    def __len__(self) -> int:
        return self.size


def pack_model(model: TableObject) -> bytes:
    """The file of a model; see pack_parts()."""
    return b"".join(pack_parts(model))


def pack_parts(model: TableObject) -> Iterator[bytes | memoryview]:
    """The file of a model in parts, so that its constants need not be in memory once more.

    Args:
        model: an object of a schema's class.

    Raises:
        TooLargeError: it would be above 2 GB.
    """
    packer, identifier = _Packer(), model.schema.identifier
    place = packer.table(model)
    packer.align(packer.alignment, 4 + len(identifier))
    packer.add(identifier)
    packer.add(_U32(packer.size + 4 - place))
    parts = reversed(packer.parts)
    return (piece for part in parts for piece in (part.pieces() if isinstance(part, DeferredBytes) else (part,)))


@cache
def _plan(schema: Schema, table: str) -> tuple[int, tuple[tuple[Field, int, Struct | None], ...]]:
    """The number of slots of a table, and its fields, each with the position of its slot and with how a scalar is packed."""
    found = schema.fields(table)
    plan = [(field, field.slot // 2 - 2, Struct(f"<{SCALARS[field.detail]}") if field.base_type == "scalar" else None) for field in found]
    return max((position for _, position, _ in plan), default=-1) + 1, tuple(plan)


class _Packer:
    """Collects the parts of a FlatBuffer, the last bytes of the file first.

    Attributes:
        parts: what has been written.
        size: of all parts, which is also the place of what was written last.
        alignment: the largest asked for.
    """

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview | DeferredBytes] = []
        self.size = 0
        self.alignment = 1
        self._vtables: dict[bytes, int] = {}

    def add(self, part: bytes | memoryview | DeferredBytes) -> None:
        """Prepends bytes; a view is one of bytes."""
        self.parts.append(part)
        self.size += len(part)
        if self.size > LARGEST:
            raise TooLargeError

    def align(self, alignment: int, following: int = 0) -> None:
        """Prepends zeros, so that what comes after `after` more bytes lies at a multiple of `alignment`."""
        if alignment > self.alignment:
            self.alignment = alignment
        count = -(self.size + following) % alignment
        if count:
            self.add(_PADDING[count])

    def table(self, item: TableObject) -> int:
        """Writes what the table refers to, its vtable if there is none like it, and itself; returns its place."""
        slots, plan = _plan(item.schema, item.table)
        stated = vars(item)  # all else has its default
        values = [(position, code, self._value(field, stated[field.name], code)) for field, position, code in plan if field.name in stated]
        end, size, places = self.size, self.size, [0] * slots
        for position, code, value in values:
            if value is None:
                continue
            width = 4 if code is None else code.size
            padding = -size % width
            size += padding + width
            self.parts.append((_U32(size - value) if code is None else code.pack(value)) + _PADDING[padding])
            self.alignment = max(self.alignment, width)
            places[position] = size
        self.size = size
        self.align(4)
        place = self.size + 4
        while places and not places[-1]:
            places.pop()
        vtable = b"".join([_U16(4 + 2 * len(places)), _U16(place - end), *(_U16(found and place - found) for found in places)])
        known = self._vtables.get(vtable)
        if known is None:
            self._vtables[vtable] = place + len(vtable)
            self.add(_I32(len(vtable)))
            self.add(vtable)
        else:
            self.add(_I32(known - place))
        return place

    def _value(self, field: Field, value: Any, code: Struct | None) -> Any:
        """A scalar, or the place of what has been written for a field; None for what is not written."""
        if code is not None:
            return None if value == field.default else value
        if value is None:
            return None
        if field.base_type == "string":
            return self._string(value)
        if field.base_type == "vector":
            return self._vector(value, field)
        if field.base_type in ("tables", "strings"):
            return self._offsets([self.table(item) if field.base_type == "tables" else self._string(item) for item in value])
        return self.table(value)

    def _string(self, text: str | bytes) -> int:
        data = text.encode() if isinstance(text, str) else text
        self.align(4, len(data) + 1)
        self.add(_U32(len(data)) + data + b"\0")
        return self.size

    def _vector(self, values: Any, field: Field) -> int:
        data = (
            values if isinstance(values, bytes | memoryview | DeferredBytes) else np.asarray(values, f"<{SCALARS[field.detail]}").tobytes()
        )
        count = len(values)
        self.align(4, len(data))
        self.align(field.alignment, len(data))
        self.add(data)
        self.add(_U32(count))
        return self.size

    def _offsets(self, places: Sequence[int]) -> int:
        """A vector of what refers to `places`."""
        self.align(4, 4 * len(places))
        start = self.size + 4 * len(places)  # the place of the first offset
        offsets = [start - 4 * index - place for index, place in enumerate(places)]
        self.add(Struct(f"<{len(offsets)}I").pack(*offsets))
        self.add(_U32(len(offsets)))
        return self.size
