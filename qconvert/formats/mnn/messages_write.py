"""Messages of MNN's compression parameters as protobuf's bytes; the mirror of messages.from_bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from qconvert.formats.mnn.messages import MESSAGES, MessageField

__all__ = ["to_bytes"]

_VARINT, _BYTES, _FIXED32 = 0, 2, 5


def to_bytes(message: str, fields: Mapping[str, Any]) -> bytes:
    """A message as protobuf, the fields that it has in the order of their numbers.

    Repeated floats have a tag each: the schema is of proto2, where they are not packed.

    Args:
        message: its name in MESSAGES.
        fields: values by name; messages are mappings, enumerations names.
    """
    parts = []
    for number, field in MESSAGES[message].items():
        if field.name in fields:
            values = fields[field.name] if field.repeated else [fields[field.name]]
            parts += [_written(number, field, value) for value in values]
    return b"".join(parts)


def _written(number: int, field: MessageField, value: Any) -> bytes:
    if field.kind == "float":
        return _varint(number << 3 | _FIXED32) + struct.pack("<f", value)
    if isinstance(field.kind, tuple):
        return _varint(number << 3 | _VARINT) + _varint(field.kind.index(value))
    if field.kind in ("int32", "bool"):
        return _varint(number << 3 | _VARINT) + _varint(int(value))
    content = value.encode() if field.kind == "string" else to_bytes(field.kind, value)
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
