"""The messages of MNN's compression parameters as data, and a Pipeline as nested dicts: from JSON, and from and to protobuf's bytes.

proto2 of tools/converter/source/compression/MNN_compression.proto, package MNN.Compression. A message becomes a dict with all its fields
in lower camel case, absent ones with their defaults; enumerations are names. Unknown fields are ignored, as MNN does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.files.documents import fail, integer, list_of, number, sort_of, text

__all__ = ["from_bytes", "from_json", "to_bytes"]

#: Wire types.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _Codec(NamedTuple):
    """How values of a type are read and written.

    Attributes:
        wire: the wire type.
        from_json: (JSON value, where it stands) -> value.
        from_wire: (what follows the tag: an integer or bytes, where it stands) -> value.
        to_wire: value -> what follows the tag.
    """

    wire: int
    from_json: Callable[[Any, str], Any]
    from_wire: Callable[[Any, str], Any]
    to_wire: Callable[[Any], bytes]


class MessageField(NamedTuple):
    """A field of a message.

    Attributes:
        name: in lower camel case.
        kind: "string", "int32", "bool", "float", the name of a message, or the names of an enumeration, a tuple from 0.
        repeated: whether there may be several.
        default: where it is absent; None if it is required.
    """

    name: str
    kind: str | tuple[str, ...]
    repeated: bool = False
    default: Any = None

    @property
    def codec(self) -> _Codec:
        """How its values are read and written."""
        if isinstance(self.kind, tuple):
            return _codec_of_enum(self.kind)
        return _SCALARS.get(self.kind) or _codec_of_message(self.kind)


_ROUNDING = ("ROUND_TOWARDS_ZERO", "ROUND_AWAY_FROM_ZERO", "ROUND_HALF_TO_EVEN")
_METHODS = ("QAT", "OverflowAware", "WinogradAware")
#: Message -> the number of a field -> the field.
MESSAGES: dict[str, dict[int, MessageField]] = {
    "Pipeline": {
        1: MessageField("version", "string"),
        2: MessageField("algo", "CompressionAlgo", True),
        3: MessageField("mnnUuid", "string", default=""),
        4: MessageField("forGuide", "bool", default=False),
    },
    "CompressionAlgo": {
        1: MessageField("type", ("QUANTIZE", "PRUNE"), default="QUANTIZE"),
        2: MessageField("quantParams", "QuantizeParams", default={}),
    },
    "QuantizeParams": {
        1: MessageField("roundMode", _ROUNDING, default="ROUND_AWAY_FROM_ZERO"),
        4: MessageField("layer", "LayerQuantizeParams", True),
    },
    "LayerQuantizeParams": {
        1: MessageField("input", "ActivationParams", True),
        2: MessageField("weight", "WeightParams", True),
        3: MessageField("output", "ActivationParams", True),
        4: MessageField("method", _METHODS, default="QAT"),
        6: MessageField("opName", "string", default=""),
        7: MessageField("subgraphName", "string", default=""),
    },
    "ActivationParams": {
        1: MessageField("name", "string"),
        2: MessageField("bits", "int32", default=8),
        3: MessageField("scales", "float", True),
        4: MessageField("zeroPoint", "int32", default=0),
        5: MessageField("clampMin", "int32", default=-128),
        6: MessageField("clampMax", "int32", default=127),
    },
    "WeightParams": {
        1: MessageField("name", "string"),
        2: MessageField("bits", "int32", default=8),
        3: MessageField("scales", "float", True),
        4: MessageField("clampMin", "int32", default=-128),
        5: MessageField("clampMax", "int32", default=127),
        6: MessageField("asymmetric", "bool", default=False),
        7: MessageField("blockSize", "int32", default=0),
    },
}
_MISSING = "MNN would print `missing field` and leave the whole model in float."
_INT32 = (-(2**31), 2**31 - 1)


def _fill_defaults(message: str, given: dict[str, Any], at: str) -> dict[str, Any]:
    """A message with all its fields.

    Raises:
        InvalidModelError: a required one is absent.
    """
    for field in MESSAGES[message].values():
        if field.name in given:
            continue
        if field.default is None and not field.repeated:
            raise InvalidModelError(
                f"the field {field.name!r} is missing; the schema requires it", where=at, remedy=_MISSING, rule="missing-member"
            )
        given[field.name] = [] if field.repeated else field.default
    return given


# JSON


def from_json(document: Any, message: str = "Pipeline", at: str = "Pipeline") -> dict[str, Any]:
    """A message in JSON as protobuf reads it: names in lower camel case or as in the .proto file, enumerations as names or numbers.

    Raises:
        InvalidModelError: a value is of another sort, or a required one is absent.
    """
    if not isinstance(document, dict):
        fail(at, f"is {sort_of(document)}, not an object", rule="wrong-type")
    fields = {name: field for field in MESSAGES[message].values() for name in (field.name, _snake(field.name))}
    found: dict[str, Any] = {}
    for key, value in document.items():
        field = fields.get(key)
        if field is None or value is None:
            continue
        if field.name in found:
            fail(at, f"the field {field.name!r} occurs under both of its names", rule="duplicate-name")
        place, read = f"{at}.{key}", field.codec.from_json
        found[field.name] = list_of(value, place, read) if field.repeated else read(value, place)
    return _fill_defaults(message, found, at)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _bool_from_json(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        fail(at, f"is {sort_of(value)}, not true or false", rule="wrong-type")
    return value


def _int32_from_json(value: Any, at: str) -> int:
    whole = integer(int(value) if isinstance(value, float) and value.is_integer() else value, at)
    if not _INT32[0] <= whole <= _INT32[1]:
        fail(at, f"is {whole}; the schema requires an integer of 32 bits", rule="number-out-of-range")
    return whole


def _read_enum(names: tuple[str, ...], value: Any, at: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    if not isinstance(value, str) or value not in names:
        fail(at, f"is {value!r}, not one of {', '.join(names)}", rule="unknown-word")
    return value


# protobuf


def from_bytes(data: memoryview, message: str = "Pipeline", at: str = "Pipeline") -> dict[str, Any]:
    """A message in protobuf's encoding (https://protobuf.dev/programming-guides/encoding).

    Raises:
        InvalidModelError: it is cut off, a value is of another wire type, or a required one is absent.
    """
    found: dict[str, Any] = {}
    for number_, wire, value in _wire(data, at):
        field = MESSAGES[message].get(number_)
        if field is None:
            continue
        place, codec = f"{at}.{field.name}", field.codec
        if not field.repeated:
            found[field.name] = _wire_value(codec, wire, value, place)
        elif codec.wire == _FIXED32 and wire == _BYTES:  # packed, which every parser takes
            if len(value) % 4:
                fail(place, "a list of packed numbers ends within a number", rule="damaged-file")
            found.setdefault(field.name, []).extend(np.frombuffer(value, "<f4").astype(np.float64).tolist())
        else:
            items = found.setdefault(field.name, [])
            items.append(_wire_value(codec, wire, value, f"{place}[{len(items)}]"))
    return _fill_defaults(message, found, at)


def _wire(data: memoryview, at: str) -> Iterator[tuple[int, int, Any]]:
    """(number, wire type, value) of the fields."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position, at)
        number_, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position, at)
            yield number_, wire, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire)
        if wire == _BYTES:
            size, position = _varint(data, position, at)
        if size is None or not number_ or position + size > end:
            fail(
                at,
                f"is no protobuf: byte {position} of its {end} is {'cut off' if size is not None else f'of wire type {wire}'}",
                rule="damaged-file",
            )
        yield number_, wire, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int, at: str) -> tuple[int, int]:
    end = position
    while end < len(data) and data[end] >= 128:
        end += 1
    if end >= min(len(data), position + 10):
        fail(at, f"is no protobuf: a number at byte {position} does not end", rule="damaged-file")
    value = sum((data[place] & 127) << 7 * (place - position) for place in range(position, end + 1))
    return value & (2**64 - 1), end + 1


def _wire_value(codec: _Codec, wire: int, value: Any, at: str) -> Any:
    if wire != codec.wire:
        fail(at, f"has wire type {wire} instead of {codec.wire}", rule="damaged-file")
    return codec.from_wire(value, at)


def to_bytes(message: str, fields: Mapping[str, Any]) -> bytes:
    """A message as protobuf, the fields that it has in the order of their numbers.

    Repeated floats have a tag each: the schema is of proto2, where they are not packed.

    Args:
        message: its name in MESSAGES.
        fields: values by name; messages are mappings, enumerations names.
    """
    parts = []
    for number_, field in MESSAGES[message].items():
        if field.name in fields:
            values, codec = fields[field.name] if field.repeated else [fields[field.name]], field.codec
            parts += [_encode_varint(number_ << 3 | codec.wire) + codec.to_wire(value) for value in values]
    return b"".join(parts)


def _encode_varint(value: int) -> bytes:
    value &= 2**64 - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _with_length(content: bytes) -> bytes:
    return _encode_varint(len(content)) + content


def _text_from_wire(value: Any, at: str) -> str:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        fail(at, "is not UTF-8", rule="not-utf8")


def _int32_from_wire(value: int, at: str) -> int:
    low = value & 0xFFFFFFFF
    return low - 2**32 if low & 0x80000000 else low


_SCALARS: Mapping[str, _Codec] = {
    "string": _Codec(_BYTES, text, _text_from_wire, lambda value: _with_length(value.encode())),
    "int32": _Codec(_VARINT, _int32_from_json, _int32_from_wire, _encode_varint),
    "bool": _Codec(_VARINT, _bool_from_json, lambda value, at: bool(value), lambda value: _encode_varint(int(value))),
    "float": _Codec(_FIXED32, number, lambda value, at: struct.unpack("<f", value)[0], partial(struct.pack, "<f")),
}


def _codec_of_enum(names: tuple[str, ...]) -> _Codec:
    read = partial(_read_enum, names)
    return _Codec(_VARINT, read, read, lambda value: _encode_varint(names.index(value)))


def _codec_of_message(message: str) -> _Codec:
    return _Codec(
        _BYTES,
        lambda value, at: from_json(value, message, at),
        lambda value, at: from_bytes(value, message, at),
        lambda value: _with_length(to_bytes(message, value)),
    )
