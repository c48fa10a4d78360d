"""Checks that a .tflite file is a sound FlatBuffer of the TFLite schema, before anything else looks at it.

The Python FlatBuffers library trusts every offset and length it finds. After verify() each accessor of the generated schema classes
stays inside the file. The rules are those of the FlatBuffers C++ verifier: every table, vtable, vector and string lies inside the
file; the number of tables visited is bounded, so that shared offsets cannot make a small file expensive.
"""

from __future__ import annotations

import mmap
from struct import Struct

from qconvert.errors import InvalidModelError
from qconvert.formats.tflite.schema_layout import TABLES, UNIONS

__all__ = ["verify"]

_U8, _U16, _U32, _I32, _U64 = (Struct(code).unpack_from for code in ("<B", "<H", "<I", "<i", "<Q"))
_MAX_TABLES = 1_000_000  # as the C++ verifier's default
_MAX_DEPTH = 16
_OTHER_FORMATS = {
    b"\x08": "an ONNX file",
    b"PK\x03\x04": "a zip archive, such as a PyTorch or Keras file",
    b"GGUF": "a GGUF file",
    b"\x89HDF": "an HDF5 file",
    b"\x80\x02": "a Python pickle",
}


def verify(data: mmap.mmap | bytes) -> None:
    """Raises InvalidModelError, saying which field breaks which rule, unless `data` is a sound TFLite FlatBuffer."""
    if len(data) < 8:
        raise InvalidModelError(f"a TFLite file has at least 8 bytes, this one has {len(data)}")
    magic = bytes(data[4:8])
    if magic != b"TFL3":
        hint = next((f"; it looks like {name}" for start, name in _OTHER_FORMATS.items() if data[: len(start)] == start), "")
        raise InvalidModelError(f"no TFLite file: its identifier is {magic!r}, not b'TFL3'{hint}")
    _Verifier(data).table("Model", _U32(data, 0)[0], 0)


class _Verifier:
    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self._size = len(data)
        self._tables = 0
        self._cost = 0

    def _require(self, start: int, length: int, what: str) -> None:
        if start < 0 or start + length > self._size:
            excess = start + length - self._size
            raise InvalidModelError(f"{what} at byte {start} runs {excess} bytes past the end of the file")

    def _spend(self, amount: int) -> None:
        """Bounds the whole work by a multiple of the file's size."""
        self._cost += amount
        if self._cost > 4 * self._size + _MAX_TABLES:
            raise InvalidModelError("the same parts of the file are used over and over")

    def table(self, name: str, position: int, depth: int) -> None:
        """Checks the table at `position` and all that hangs on it."""
        self._tables += 1
        if self._tables > _MAX_TABLES or depth > _MAX_DEPTH:
            raise InvalidModelError("the file holds too many or too deeply nested tables")
        self._require(position, 4, name)
        vtable = position - _I32(self._data, position)[0]
        self._require(vtable, 4, f"the vtable of {name}")
        length = _U16(self._data, vtable)[0]
        if length < 4 or length % 2:
            raise InvalidModelError(f"the vtable of {name} at byte {vtable} has length {length}")
        self._require(vtable, length, f"the vtable of {name}")
        self._spend(length)
        for slot, kind in TABLES[name].items():
            offset = _U16(self._data, vtable + slot)[0] if slot < length else 0
            if offset:
                self._field(f"{name} field {slot // 2 - 2}", kind, position + offset, vtable, length, slot, position, depth)
        if name == "Buffer":
            self._outside(position, vtable, length)

    def _field(self, what: str, kind: str, place: int, vtable: int, length: int, slot: int, position: int, depth: int) -> None:
        form, _, detail = kind.partition(":")
        if form == "scalar":
            self._require(place, int(detail), what)
            return
        target = self._target(place, what)
        if form == "table":
            self.table(detail, target, depth + 1)
        elif form == "vector":
            self._vector(target, int(detail), what)
        elif form == "string":
            self._vector(target, 1, what)
        elif form == "union":
            kind_offset = _U16(self._data, vtable + slot - 2)[0]
            number = _U8(self._data, position + kind_offset)[0] if kind_offset else 0
            member = UNIONS[detail].get(number)
            if member is None:
                raise InvalidModelError(f"{what} is of kind {number}, which the schema does not have")
            self.table(member, target, depth + 1)
        else:
            count = self._vector(target, 4, what)
            self._spend(4 * count)
            for place in range(target + 4, target + 4 + 4 * count, 4):
                item = self._target(place, what)
                if form == "tables":
                    self.table(detail, item, depth + 1)
                else:
                    self._vector(item, 1, what)

    def _target(self, place: int, what: str) -> int:
        self._require(place, 4, what)
        return place + int(_U32(self._data, place)[0])

    def _vector(self, position: int, item_size: int, what: str) -> int:
        self._require(position, 4, what)
        count = int(_U32(self._data, position)[0])
        self._require(position + 4, count * item_size, what)
        return count

    def _outside(self, position: int, vtable: int, length: int) -> None:
        """Data behind the FlatBuffer, for files above 2 GB (Buffer.offset, Buffer.size)."""
        values = []
        for slot in (6, 8):
            offset = _U16(self._data, vtable + slot)[0] if slot < length else 0
            values.append(_U64(self._data, position + offset)[0] if offset else 0)
        if values[0] > 1 and values[1]:
            self._require(values[0], values[1], "the data of a Buffer")
