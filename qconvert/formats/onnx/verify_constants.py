"""Checks the constants of an ONNX protobuf: data types, sizes, and where external data lie (ONNX, onnx.proto and docs/ExternalData.md)."""

from __future__ import annotations

import math
import os
import re
import stat
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.onnx.wire import OWN_FILE

__all__ = ["BITS", "STRING", "check_constant"]

_MAX_ELEMENTS = 2**40
#: TensorProto.DataType -> bits of an element in raw_data and external data (onnx.proto; below 8 bits packed without gaps).
BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16,
    17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2, 27: 6, 28: 6,
}  # fmt: skip
STRING = 8
#: TensorProto.DataType -> the field that holds the values if raw_data does not; all others use int32_data (onnx.proto).
_FIELDS = {
    1: "float_data", 14: "float_data", 7: "int64_data", STRING: "string_data", 11: "double_data", 15: "double_data",
    12: "uint64_data", 13: "uint64_data",
}  # fmt: skip
_ALL_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_EXTERNAL = 1


def check_constant(tensor: Any, folder: Path, own_size: int, where: str) -> None:
    """The data of a constant are as long as its dims and data type say, and lie where they may.

    Args:
        tensor: an onnx.TensorProto.
        folder: where external data lie.
        own_size: the bytes of the model's own file, in which large constants lie (wire.py).
        where: how an error calls the constant.

    Raises:
        InvalidModelError: it contradicts itself or the file system.
    """
    count = _element_count(tensor, where)
    if tensor.data_location == _EXTERNAL:
        _check_external(tensor, folder, own_size, where)
        return
    filled = [name for name in _ALL_FIELDS if len(getattr(tensor, name))]
    if tensor.HasField("raw_data"):
        if tensor.data_type == STRING:
            raise InvalidModelError("strings cannot be raw data", where=where, rule="string-storage")
        if filled:
            raise InvalidModelError(f"has both raw_data and {filled[0]}", where=where, rule="two-value-fields")
        _require_length("raw_data holds {} bytes", len(tensor.raw_data), _byte_count(tensor.data_type, count), tensor, where)
        return
    field = _FIELDS.get(tensor.data_type, "int32_data")
    for name in filled:
        if name != field:
            raise InvalidModelError(
                f"data type {tensor.data_type} is given in {name} instead of {field}", where=where, rule="wrong-value-field"
            )
    expected = count
    if tensor.data_type in (14, 15):  # complex: real and imaginary parts
        expected = 2 * count
    elif BITS.get(tensor.data_type, 8) in (2, 4):  # packed into bytes, one in each int32 (onnx.proto, int32_data)
        expected = _byte_count(tensor.data_type, count)
    _require_length(f"{field} holds {{}} values", len(getattr(tensor, field)), expected, tensor, where)


def _element_count(tensor: Any, where: str) -> int:
    if tensor.data_type != STRING and tensor.data_type not in BITS:
        raise InvalidModelError(f"has the unknown data type {tensor.data_type}", where=where, rule="unknown-type")
    if any(size < 0 for size in tensor.dims):
        raise InvalidModelError(f"has the negative size {min(tensor.dims)}", where=where, rule="negative-size")
    if len(tensor.dims) > 64:  # numpy's limit, above that of any operator
        raise InvalidModelError(f"has {len(tensor.dims)} dimensions", where=where, rule="rank-too-large")
    if tensor.HasField("segment"):
        raise InvalidModelError("is stored in segments, which no runtime reads", where=where, rule="segmented-constant")
    count: int = math.prod(tensor.dims)
    # a size of 0 must not hide others that numpy cannot hold
    if math.prod(size for size in tensor.dims if size) > _MAX_ELEMENTS:
        raise InvalidModelError(
            f"has dims {list(tensor.dims)}, more than {_MAX_ELEMENTS:,} elements", where=where, rule="too-many-elements"
        )
    return count


def _byte_count(data_type: int, count: int) -> int:
    bits = BITS[data_type] * count
    return (bits + 7) // 8


def _require_length(text: str, found: int, expected: int, tensor: Any, where: str) -> None:
    if found != expected:
        raise InvalidModelError(f"{text.format(found)}, but dims {list(tensor.dims)} need {expected}", where=where, rule="wrong-length")


def _check_external(tensor: Any, folder: Path, own_size: int, where: str) -> None:
    """The data of an external tensor lie inside a regular file beside the model.

    The location is a path relative to the model's folder and stays inside it (ONNX, docs/ExternalData.md); links are refused
    too, since a model that one was given could point anywhere with them.
    """
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entries.setdefault(entry.key, entry.value) != entry.value:
            raise InvalidModelError(f"states the {entry.key} of its external data twice", where=where, rule="duplicate-entry")
    if tensor.data_type == STRING:
        raise InvalidModelError("strings cannot be raw or external data", where=where, rule="string-storage")
    if any(len(getattr(tensor, name)) for name in _ALL_FIELDS) or tensor.HasField("raw_data"):
        raise InvalidModelError("has its values in two places", where=where, rule="two-value-fields")
    expected = _byte_count(tensor.data_type, math.prod(tensor.dims))
    location = entries.get("location", "")
    offset = _number(entries.get("offset", "0"), "offset", where)
    length = _number(entries.get("length", str(expected)), "length", where)
    if location == OWN_FILE:
        _require_length("raw_data holds {} bytes", length, expected, tensor, where)
        if offset + length > own_size:
            raise InvalidModelError("its data extend beyond the end of the file", where=where, rule="external-data-too-short")
        return
    size = _regular_file(location, folder, where).stat().st_size
    _require_length("has {} bytes of external data", length, expected, tensor, where)
    if offset + length > size:
        reason = f"its external data, bytes {offset} to {offset + length}, end behind the {size} bytes of {location!r}"
        raise InvalidModelError(reason, where=where, remedy="The file may be cut off; fetch it again.", rule="external-data-too-short")


def _number(text: str, name: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InvalidModelError(
            f"the {name} of its external data is {text[:40]!r}, not a valid number", where=where, rule="invalid-external-data"
        )
    return int(text)


def _regular_file(location: str, folder: Path, where: str) -> Path:
    parts = location.split("/")
    if not location:
        raise InvalidModelError("its external data have no location", where=where, rule="invalid-external-data")
    if location.startswith("/") or "\\" in location or "\0" in location or re.match(r"[A-Za-z]:", location):
        raise InvalidModelError(
            f"its external data's location {location!r} is not a relative path with slashes", where=where, rule="external-data-outside"
        )
    if ".." in parts:
        raise InvalidModelError(
            f"its external data's location {location!r} leads out of the model's folder", where=where, rule="external-data-outside"
        )
    place = folder
    for part in parts:
        place = place / part
        try:
            mode = os.lstat(place).st_mode
        except (OSError, ValueError) as error:
            reason = f"its external data file {location!r} cannot be read: {getattr(error, 'strerror', None) or error}"
            raise InvalidModelError(reason, where=where, remedy="Put the file next to the model.", rule="external-data-missing") from error
        if stat.S_ISLNK(mode):
            remedy = "Put the file itself next to the model."
            raise InvalidModelError(
                f"its external data file {location!r} is a symbolic link", where=where, remedy=remedy, rule="external-data-not-regular"
            )
    if not stat.S_ISREG(mode):
        raise InvalidModelError(f"its external data {location!r} is not a regular file", where=where, rule="external-data-not-regular")
    return place
