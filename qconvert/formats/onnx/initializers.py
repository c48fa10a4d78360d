"""Constants of ONNX models: where they go when a file is written, and, of a file that is read, their checks and arrays on mapped files."""

from __future__ import annotations

import math
import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from qconvert.arithmetic.storage import contiguous, contiguous_pieces, pack_bits
from qconvert.errors import InvalidModelError, QConvertError
from qconvert.files import copy_mapped, map_file, named_by_content, release_pages
from qconvert.formats.onnx.proto import TensorProto
from qconvert.formats.onnx.wire import OWN_FILE, encode_varint
from qconvert.graph import Array, canonical_dtype, numpy_dtype

#: Canonical dtype -> number in onnx.TensorProto.DataType.
ELEMENT_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "string": 8, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14, "bfloat16": 16, "uint4": 21, "int4": 22,
    "float8e4m3fn": 17, "float8e4m3fnuz": 18, "float8e5m2": 19, "float8e5m2fnuz": 20, "float4e2m1": 23, "uint2": 25,
    "int2": 26,
}  # fmt: skip
#: The reverse.
DTYPE_NAMES = {number: name for name, number in ELEMENT_TYPES.items()}

#: Total size of the constants above which they leave the model's file, and the size of one that stays in it even then.
EXTERNAL_ABOVE, INLINE_UP_TO = 2**30, 1024
_LARGEST_FILE = 2**31 - 1
#: Tags of fields (onnx.proto): ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7 << 3 | 2, 5 << 3 | 2, 9 << 3 | 2
#: A page, so that a runtime can map a large constant by itself; and a cache line.
_ALIGNMENT, _SMALL_ALIGNMENT, _LARGE = 4096, 64, 2**16


def inline(constants: Mapping[str, Array]) -> Iterator[Any]:
    """TensorProtos that hold the constants themselves, one after the other: all of them may be as large as the model."""
    return (_inline(name, data) for name, data in constants.items())


def store(constants: Mapping[str, Array], model: Path, deferred: dict[str, Array], *, external: bool = False) -> list[Any]:
    """TensorProtos of the constants. Those of large ones hold no data: these go to a file next to the model if the constants are more than
    1 GiB, and otherwise are left to write_model().

    Args:
        constants: arrays of canonical dtypes by name.
        model: the file that the model is about to be written to. The name of the file next to it is made of its name and the constants.
        deferred: gets the constants that are left to write_model().
        external: whether constants above 1 KiB go to a file however large they are together.
    """
    large = {name: data for name, data in constants.items() if data.dtype != object and byte_count(data) > INLINE_UP_TO}
    if not large or (not external and sum(map(byte_count, constants.values())) <= EXTERNAL_ABOVE):
        deferred.update(large)
        return [_tensor(name, data) if name in large else _inline(name, data) for name, data in constants.items()]
    unnamed = model.with_name("constants")
    with unnamed.open("wb") as stream:
        tensors = [_external(name, data, stream) if name in large else _inline(name, data) for name, data in constants.items()]
    location = named_by_content(unnamed, model).name
    for tensor in tensors:
        if tensor.data_location == tensor.EXTERNAL:
            tensor.external_data.add(key="location", value=location)
    return tensors


def write_model(model: Any, deferred: Mapping[str, Array], path: Path) -> None:
    """Write a ModelProto to a file, one constant after the other: protobuf would hold all of them three times.

    Args:
        model: loses its graph.
        deferred: data of initializers of its main graph that hold none, by name.
        path: the file; it is overwritten.

    Raises:
        QConvertError: the file would be above 2 GB.
    """
    graph = model.graph
    parts: list[tuple[bytes, Array | None]] = []
    size = 0
    for tensor in graph.initializer:
        data = deferred.get(tensor.name)
        head, length = tensor.SerializeToString(), 0
        if data is not None:
            length = byte_count(data)
            head += encode_varint(_RAW_DATA) + encode_varint(length)
        head = encode_varint(_INITIALIZER) + encode_varint(len(head) + length) + head
        parts.append((head, data))
        size += len(head) + length
    del graph.initializer[:]
    nodes = graph.SerializeToString()
    model.ClearField("graph")
    start = model.SerializeToString() + encode_varint(_GRAPH) + encode_varint(len(nodes) + size) + nodes
    if len(start) + size > _LARGEST_FILE:
        raise QConvertError("the model is above 2 GB, the limit of one ONNX file", where=graph.name, rule="file-too-large")
    with path.open("wb") as stream:
        stream.write(start)
        for head, data in parts:
            stream.write(head)
            if data is not None:
                _write_data(data, stream)


def byte_count(data: Array) -> int:
    """The bytes that a constant takes in a file."""
    return (data.size * _bits(data) + 7) // 8


def _bits(data: Array) -> int:
    """The bits of an element in a file."""
    return BITS.get(ELEMENT_TYPES[canonical_dtype(data.dtype)], data.dtype.itemsize * 8)


def _tensor(name: str, data: Array) -> Any:
    return TensorProto(name=name, data_type=ELEMENT_TYPES[canonical_dtype(data.dtype)], dims=data.shape)


def _inline(name: str, data: Array) -> Any:
    tensor = _tensor(name, data)
    if tensor.data_type == ELEMENT_TYPES["string"]:
        tensor.string_data.extend(item if isinstance(item, bytes) else str(item).encode() for item in data.reshape(-1))
    else:
        tensor.raw_data = _pack_elements(data).tobytes()
    return tensor


def _external(name: str, data: Array, stream: BinaryIO) -> Any:
    tensor = _tensor(name, data)
    length = byte_count(data)
    alignment = _ALIGNMENT if length >= _LARGE else _SMALL_ALIGNMENT
    offset = -(-stream.tell() // alignment) * alignment
    stream.seek(offset)
    tensor.data_location = tensor.EXTERNAL
    for key, value in (("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    _write_data(data, stream)
    return tensor


def _write_data(data: Array, stream: BinaryIO) -> None:
    """Append the bytes of a constant to a file, and give back the memory of those that are a view on another file."""
    if _bits(data) >= 8 and copy_mapped(data, stream):
        release_pages(data)
        return
    for piece in contiguous_pieces(data):
        stream.write(_pack_elements(piece).data)
        release_pages(piece)
    if not data.flags.c_contiguous:
        release_pages(data)


def _pack_elements(data: Array) -> Array:
    """The bytes of a constant; elements of 4 and 2 bits share bytes, the first in the low bits (onnx.proto, raw_data)."""
    flat = contiguous(data).reshape(-1).view(np.uint8)
    bits = _bits(data)
    if bits >= 8:
        return flat
    return pack_bits(flat & np.uint8(2**bits - 1), bits)


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
    filled = [field.name for field, _ in tensor.ListFields() if field.name in _ALL_FIELDS]
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
    sizes = tuple(tensor.dims)
    if min(sizes, default=0) < 0:
        raise InvalidModelError(f"has the negative size {min(sizes)}", where=where, rule="negative-size")
    if len(sizes) > 64:  # numpy's limit, above that of any operator
        raise InvalidModelError(f"has {len(sizes)} dimensions", where=where, rule="rank-too-large")
    if tensor.HasField("segment"):
        raise InvalidModelError("is stored in segments, which no runtime reads", where=where, rule="segmented-constant")
    # a size of 0 must not hide others that numpy cannot hold
    if math.prod(filter(None, sizes)) > _MAX_ELEMENTS:
        raise InvalidModelError(f"has dims {list(sizes)}, more than {_MAX_ELEMENTS:,} elements", where=where, rule="too-many-elements")
    return math.prod(sizes)


def _byte_count(data_type: int, count: int) -> int:
    bits = BITS[data_type] * count
    return (bits + 7) // 8


def _require_length(text: str, found: int, expected: int, tensor: Any, where: str) -> None:
    if found != expected:
        raise InvalidModelError(f"{text.format(found)}, but dims {list(tensor.dims)} need {expected}", where=where, rule="wrong-length")


def _check_external(tensor: Any, folder: Path, own_size: int, where: str) -> None:
    """The data of an external tensor lie inside a regular file next to the model.

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
        reason = f"its external data, bytes {offset} to {offset + length}, extend beyond the {size} bytes of {location!r}"
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


class Files:
    """The files that hold constants, each mapped once.

    Args:
        folder: where external data lie.
        own: the model's own file, in which large constants lie (wire.py).
    """

    def __init__(self, folder: Path, own: mmap.mmap | bytes) -> None:
        self._folder = folder
        self._mapped: dict[str, mmap.mmap | bytes] = {OWN_FILE: own}

    def bytes_of(self, tensor: Any) -> Array:
        """The bytes of a verified external TensorProto, as a view."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries["location"]
        if location not in self._mapped:
            self._mapped[location] = map_file(self._folder / location)
        count = _byte_count(tensor.data_type, math.prod(tensor.dims))
        return np.frombuffer(self._mapped[location], np.uint8, count, int(entries.get("offset", 0))) if count else np.empty(0, np.uint8)

    def embed_data(self, tensor: Any) -> None:
        """Puts the bytes of an external TensorProto into it."""
        if tensor.data_location == tensor.EXTERNAL:
            data = self.bytes_of(tensor).tobytes()
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
            tensor.raw_data = data

    def numpy(self, tensor: Any) -> Array:
        """The values of a verified TensorProto: a view on the file where they lie in one whole, text as bytes."""
        if tensor.data_type == STRING:
            return np.array(list(tensor.string_data), object).reshape(tensor.dims)
        is_external = tensor.data_location == tensor.EXTERNAL
        if (is_external or tensor.HasField("raw_data")) and BITS[tensor.data_type] >= 8 and tensor.data_type in DTYPE_NAMES:
            data = self.bytes_of(tensor) if is_external else np.frombuffer(tensor.raw_data, np.uint8)
            return data.view(numpy_dtype(DTYPE_NAMES[tensor.data_type]).newbyteorder("<")).reshape(tensor.dims)
        from onnx import numpy_helper

        if is_external:
            copy = type(tensor)()
            copy.CopyFrom(tensor)
            self.embed_data(copy)
            tensor = copy
        return np.asarray(numpy_helper.to_array(tensor))
