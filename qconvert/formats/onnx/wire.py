"""Looks through the bytes of an .onnx file before they are parsed: counts, and leaves large constants where they are.

A parser makes an object of about 100 bytes out of two, and copies every constant. Here the messages are counted and measured
first, and the raw_data of large constants is cut out of what is parsed: such a constant becomes external data whose location is
OWN_FILE, so that both kinds are views on a mapped file. The encoding is that of protobuf (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.onnx.proto import ModelProto, TensorProto

#: The location of a constant that lies in the model's own file. No real path holds a NUL, and no file can state it, since it is made again
#: in each process: a small file whose constants all point to the same bytes would become a large one.
OWN_FILE = f"\0{os.urandom(16).hex()}"
#: Constants of fewer bytes are parsed as they are.
_LARGE = 1024
#: Nodes, attributes, types, sizes and all else. A model of 100,000 nodes has about a million and a half.
_MAX_MESSAGES = 4_000_000
#: Levels of messages; upb, protobuf's parser, stops at 100 as well. A subgraph takes three.
_MAX_DEPTH = 99
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: In the place of a kind of message: the field holds text.
_TEXT = "text"
_RAW_DATA = 9 << 3 | _BYTES  # of a TensorProto


@cache
def _messages() -> dict[str, dict[int, str]]:
    """Kind of message -> tag of a field -> the kind of the messages that it holds, or _TEXT, for all in a ModelProto (onnx.proto)."""
    found: dict[str, dict[int, str]] = {}
    waiting = [ModelProto.DESCRIPTOR]
    while waiting:
        kind = waiting.pop()
        if kind.name not in found:
            nested = [field for field in kind.fields if field.message_type is not None]
            texts = [field for field in kind.fields if field.type == field.TYPE_STRING and field.name != "doc_string"]
            found[kind.name] = {field.number << 3 | _BYTES: field.message_type.name for field in nested}
            found[kind.name] |= {field.number << 3 | _BYTES: _TEXT for field in texts}
            waiting += [field.message_type for field in nested]
    return found


def without_large_constants(data: Any, *, max_messages: int = _MAX_MESSAGES) -> bytes:
    """The bytes of a ModelProto in which the raw_data of large constants is replaced by a reference to OWN_FILE.

    Args:
        data: the whole file, bytes or a mapping.
        max_messages: how many messages it may hold.

    Raises:
        InvalidModelError: it is no protobuf, is cut off, or holds more messages or levels than any model.
    """
    with memoryview(data) as view:
        scanner = _Scanner(view, max_messages)
        scanner.message("ModelProto", 0, len(view), 1)
        pieces, start = [], 0
        for first, following, replacement in scanner.edits:
            pieces += [view[start:first].tobytes(), replacement]
            start = following
        return b"".join([*pieces, view[start:].tobytes()])


class _Scanner:
    """Walks messages in the order of the file; `edits` are (first byte, byte after, replacement)."""

    def __init__(self, view: memoryview, max_messages: int) -> None:
        self.view = view
        self.edits: list[tuple[int, int, bytes]] = []
        self.left = max_messages
        self.kinds = _messages()

    def message(self, name: str, position: int, end: int, depth: int) -> int:
        """Scans one message; returns by how many bytes it grows (below zero where something is cut out)."""
        self.left -= 1
        if self.left < 0:
            raise InvalidModelError("the file holds more nodes, attributes or constants than any model", rule="too-many-nodes")
        if depth > _MAX_DEPTH:
            raise InvalidModelError("its graphs are nested too deeply", rule="nested-too-deeply")
        nested, view, growth, references = self.kinds[name], self.view, 0, b""
        raw = _RAW_DATA if name == "TensorProto" else 0
        while position < end:
            start = position
            tag = view[position]
            position += 1
            if tag >= 128:
                tag, position = self.varint(start, end)
            wire = tag & 7
            if wire == _BYTES:
                length_at = position
                if position < end and view[position] < 128:  # as nearly all are; a call takes longer than all else here
                    length, position = view[position], position + 1
                else:
                    length, position = self.varint(position, end)
                following = position + length
                if following > end:
                    raise _damaged_error(start)
                kind = nested.get(tag)
                if kind is _TEXT:
                    self.text(position, following)
                elif kind is not None:
                    slot = len(self.edits)
                    self.edits.append((0, 0, b""))
                    grown = self.message(kind, position, following, depth + 1)
                    if len(self.edits) > slot + 1:
                        written = encode_varint(length + grown)
                        self.edits[slot] = (length_at, position, written)
                        growth += grown + len(written) - (position - length_at)
                    else:
                        self.edits.pop()
                elif tag == raw and length >= _LARGE:
                    self.edits.append((start, following, b""))
                    growth -= following - start
                    references += _reference(position, length)
                position = following
            elif wire == _VARINT:
                position = self.varint(position, end)[1]
            elif wire in (_FIXED32, _FIXED64):
                position += 4 if wire == _FIXED32 else 8
            else:
                raise _damaged_error(start)
        if position > end:
            raise _damaged_error(end)
        if references:  # at the end, since of a field that is given twice the last one counts
            self.edits.append((end, end, references))
        return growth + len(references)

    def text(self, position: int, following: int) -> None:
        """Names are UTF-8. Protobuf packages differ in whether they look, and some give bytes or an error where the name is used."""
        data = self.view[position:following].tobytes()
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError as error:
                raise InvalidModelError(f"a name in the file is not UTF-8: {data[:40]!r} (byte {position})", rule="not-utf8") from error

    def varint(self, position: int, end: int) -> tuple[int, int]:
        """A number in base 128, lowest digits first, and the position after it."""
        value = shift = 0
        for place in range(position, min(end, position + 10)):
            byte = self.view[place]
            value |= (byte & 127) << shift
            if byte < 128:
                return value, place + 1
            shift += 7
        raise _damaged_error(position)


def _damaged_error(position: int) -> InvalidModelError:
    return InvalidModelError(f"this is not an ONNX file, or it is cut off or damaged (byte {position})", rule="not-this-format")


def encode_varint(value: int) -> bytes:
    """Return a number in base 128, lowest digits first, as protobuf writes tags and lengths."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def _reference(offset: int, length: int) -> bytes:
    """The fields of a TensorProto that say where its data lie."""
    tensor = TensorProto(data_location=TensorProto.EXTERNAL)
    for key, value in (("location", OWN_FILE), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return bytes(tensor.SerializeToString())
