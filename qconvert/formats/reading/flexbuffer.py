"""FlexBuffers, in which operators of TFLite and of other domains keep options that no schema knows: read within limits, and written.

The Python library trusts every offset. Here each one is checked, and the number of values and their depth are bounded, since values may
share what they refer to. Layout: https://flatbuffers.dev/internals#flexbuffers.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from qconvert.errors import InvalidModelError

#: A map, a vector, a text, bytes, a number, a truth value, or nothing.
Value = dict[str, Any] | list[Any] | str | bytes | int | float | bool | None

#: Options of operators have dozens of values; a table of labels, a few thousand.
_MOST_VALUES, _DEEPEST, _LARGEST = 20_000, 16, 2**20
_INT, _UINT, _FLOAT, _BOOL = 1, 2, 3, 26
_KEY, _STRING, _MAP, _VECTOR, _BLOB = 4, 5, 9, 10, 25
_INDIRECT = {6: _INT, 7: _UINT, 8: _FLOAT}
#: Vectors of one type with their length in front, and those of a fixed length.
_TYPED = {11: _INT, 12: _UINT, 13: _FLOAT, 14: _KEY, 15: _STRING, 36: _BOOL}
_FIXED = {16 + 3 * (length - 2) + place: (kind, length) for length in (2, 3, 4) for place, kind in enumerate((_INT, _UINT, _FLOAT))}
_CODES = {
    (_INT, 1): "b", (_INT, 2): "h", (_INT, 4): "i", (_INT, 8): "q", (_UINT, 1): "B", (_UINT, 2): "H", (_UINT, 4): "I", (_UINT, 8): "Q",
    (_FLOAT, 2): "e", (_FLOAT, 4): "f", (_FLOAT, 8): "d",
}  # fmt: skip
_UNPACK = {key: Struct("<" + code).unpack_from for key, code in _CODES.items()}


def decode_flexbuffer(data: bytes) -> Value:
    """The value that a FlexBuffer holds.

    Raises:
        InvalidModelError: it is none, is damaged, or is above the limits: 1 MB, 20,000 values, 16 levels.
    """
    if not 3 <= len(data) <= _LARGEST:
        raise _damaged_error(f"{len(data)} bytes, not 3 to {_LARGEST}")
    width = data[-1]
    if width not in (1, 2, 4, 8) or len(data) < 2 + width:
        raise _damaged_error(f"its root has {width} bytes")
    return _Decoder(data).value(len(data) - 2 - width, width, data[-2], 0)


def encode_flexbuffer(value: Value) -> bytes:
    """A value as a FlexBuffer.

    Raises:
        InvalidModelError: a key contains a zero byte, its terminator.
    """
    from flatbuffers import flexbuffers

    builder = flexbuffers.Builder()
    _add(builder, value)
    return bytes(builder.Finish())


def _add(builder: Any, value: Value) -> None:
    if isinstance(value, dict):
        with builder.Map():
            for key, item in value.items():
                if "\0" in key:
                    raise InvalidModelError(f"{key!r} contains a zero byte; a key of a FlexBuffer must have none", rule="name-not-storable")
                builder.Key(key.encode("utf-8"))
                _add(builder, item)
    elif isinstance(value, list):
        with builder.Vector():
            for item in value:
                _add(builder, item)
    elif isinstance(value, float):  # whose width the library gets wrong beyond float32
        builder.Float(value, 8)
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 2**62:
        builder.UInt(value, 8)
    else:
        builder.Add(value)


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _MOST_VALUES

    def value(self, place: int, width: int, packed: int, depth: int) -> Value:
        """The value at `place`, in a slot of `width` bytes, of the type and child's width that `packed` says."""
        self._count(1)
        kind, child = packed >> 2, 1 << (packed & 3)
        if kind == 0:
            return None
        if kind in (_INT, _UINT, _FLOAT, _BOOL):
            inline: Value = self._scalar(place, width, kind)
            return inline
        target = self._target(place, width)
        if kind in _INDIRECT:
            indirect: Value = self._scalar(target, child, _INDIRECT[kind])
            return indirect
        if kind == _KEY:
            return self._key(target)
        if kind in (_STRING, _BLOB):
            content = self._bytes(target, self._length(target, child))
            return content if kind == _BLOB else _text(content)
        if depth == _DEEPEST:
            raise _damaged_error(f"more than {_DEEPEST} levels")
        if kind in _FIXED:
            item, length = _FIXED[kind]
            return self._typed_vector(target, length, child, item)
        length = self._length(target, child)
        if kind in _TYPED:
            return self._typed_vector(target, length, child, _TYPED[kind])
        if kind not in (_MAP, _VECTOR):
            raise _damaged_error(f"type {kind}")
        self._count(length)
        types = self._bytes(target + length * child, length)
        if kind == _VECTOR:
            return [self.value(target + index * child, child, types[index], depth + 1) for index in range(length)]
        keys = self._keys(target - 3 * child, child, length)
        return {key: self.value(target + index * child, child, types[index], depth + 1) for index, key in enumerate(keys)}

    def _keys(self, place: int, width: int, length: int) -> list[str]:
        """The keys of a map, whose vector the slot at `place` names, with its width after it."""
        target, own = self._target(place, width), self._number(place + width, width)
        if own not in (1, 2, 4, 8) or self._length(target, own) != length:
            raise _damaged_error("a map has other keys than values")
        found = [self._key(self._target(target + index * own, own)) for index in range(length)]
        if len(set(found)) != length:
            raise _damaged_error("a map has a key twice")
        return found

    def _typed_vector(self, target: int, length: int, width: int, kind: int) -> list[Any]:
        self._count(length)
        self._bytes(target, length * width)
        places = range(target, target + length * width, width)
        if kind == _KEY:
            return [self._key(self._target(place, width)) for place in places]
        if kind == _STRING:  # no longer written: each has a length of as many bytes as the vector's
            targets = [self._target(place, width) for place in places]
            return [_text(self._bytes(target, self._length(target, width))) for target in targets]
        return [self._scalar(place, width, kind) for place in places]

    def _scalar(self, place: int, width: int, kind: int) -> Any:
        unpack = _UNPACK.get((_UINT if kind == _BOOL else kind, width))
        self._bytes(place, width)
        if unpack is None:
            raise _damaged_error(f"a float of {width} bytes")
        found = unpack(self._data, place)[0]
        return bool(found) if kind == _BOOL else found

    def _number(self, place: int, width: int) -> int:
        return int(self._scalar(place, width, _UINT))

    def _length(self, target: int, width: int) -> int:
        return self._number(target - width, width)

    def _target(self, place: int, width: int) -> int:
        return place - self._number(place, width)

    def _key(self, target: int) -> str:
        end = self._data.find(b"\0", target) if target >= 0 else -1
        if end < 0:
            raise _damaged_error("a key runs out of it")
        self._count(1 + (end - target) // 64)
        return _text(self._data[target:end])

    def _bytes(self, start: int, length: int) -> bytes:
        if start < 0 or start + length > len(self._data):
            raise _damaged_error(f"{length} bytes at {start} of {len(self._data)}")
        return self._data[start : start + length]

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise _damaged_error(f"more than {_MOST_VALUES} values")


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged_error("a text that is not UTF-8") from error


def _damaged_error(reason: str) -> InvalidModelError:
    return InvalidModelError(f"a FlexBuffer is damaged or too large: {reason}", rule="damaged-flexbuffer")
