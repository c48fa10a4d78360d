"""Where the constants of an ONNX model go: into the model's file, or into a file of their own next to it.

A protobuf holds 2 GB at most, and whoever loads it copies everything in it; external data can be memory-mapped (ONNX,
docs/ExternalData.md). Views on a memory-mapped source are copied in pieces, and the pages of each piece are released: writing a large
model needs little memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from qconvert.files import copy_mapped, named_by_content, release_pages
from qconvert.graph import Array, canonical_dtype

__all__ = ["ELEMENT_TYPES", "inline", "store"]

#: Canonical dtype -> number in onnx.TensorProto.DataType.
ELEMENT_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "string": 8, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14, "bfloat16": 16, "uint4": 21, "int4": 22,
    "float8e4m3fn": 17, "float8e4m3fnuz": 18, "float8e5m2": 19, "float8e5m2fnuz": 20, "float4e2m1": 23, "uint2": 25,
    "int2": 26,
}  # fmt: skip

#: Total size of the constants above which they leave the model's file, and the size of one that stays in it even then.
EXTERNAL_ABOVE, INLINE_UP_TO = 2**30, 1024
#: How much of a constant is in memory at a time.
_PIECE = 32 * 2**20
#: A page, so that a runtime can map a large constant by itself; and a cache line.
_ALIGNMENT, _SMALL_ALIGNMENT, _LARGE = 4096, 64, 2**16
_ELEMENT_BITS = {"int4": 4, "uint4": 4, "float4e2m1": 4, "int2": 2, "uint2": 2}


def inline(constants: Mapping[str, Array]) -> list[Any]:
    """TensorProtos that hold the constants themselves."""
    return [_inline(name, data) for name, data in constants.items()]


def store(constants: Mapping[str, Array], model: Path, *, external: bool = False) -> list[Any]:
    """TensorProtos of the constants: inline, or in a file next to the model if they are more than 1 GiB.

    Args:
        constants: arrays of canonical dtypes by name.
        model: the file that the model is about to be written to. The name of the file next to it is made of its name and the constants.
        external: whether constants above 1 KiB go to a file however large they are together.
    """
    if not external and sum(byte_count(data) for data in constants.values()) <= EXTERNAL_ABOVE:
        return inline(constants)
    large = {name for name, data in constants.items() if data.dtype != object and byte_count(data) > INLINE_UP_TO}
    if not large:
        return inline(constants)
    unnamed = model.with_name("constants")
    with unnamed.open("wb") as stream:
        tensors = [_external(name, data, stream) if name in large else _inline(name, data) for name, data in constants.items()]
    location = named_by_content(unnamed, model).name
    for tensor in tensors:
        if tensor.data_location == tensor.EXTERNAL:
            tensor.external_data.add(key="location", value=location)
    return tensors


def byte_count(data: Array) -> int:
    """The bytes that a constant takes in a file."""
    return (data.size * _ELEMENT_BITS.get(canonical_dtype(data.dtype), data.dtype.itemsize * 8) + 7) // 8


def _tensor(name: str, data: Array) -> Any:
    from onnx import TensorProto

    return TensorProto(name=name, data_type=ELEMENT_TYPES[canonical_dtype(data.dtype)], dims=data.shape)


def _inline(name: str, data: Array) -> Any:
    tensor = _tensor(name, data)
    if tensor.data_type == ELEMENT_TYPES["string"]:
        tensor.string_data.extend(item if isinstance(item, bytes) else str(item).encode() for item in data.reshape(-1))
    else:
        tensor.raw_data = _pack_elements(data).tobytes()
        release_pages(data)
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
    if canonical_dtype(data.dtype) not in _ELEMENT_BITS and copy_mapped(data, stream):
        release_pages(data)
        return tensor
    step = _PIECE // data.dtype.itemsize
    flat = np.ascontiguousarray(data).reshape(-1)  # a transposed view is copied here, one constant at a time
    for start in range(0, flat.size, step):
        piece = flat[start : start + step]
        stream.write(_pack_elements(piece).data)
        release_pages(piece)
    if not data.flags.c_contiguous:
        release_pages(data)
    return tensor


def _pack_elements(data: Array) -> Array:
    """The bytes of a constant; elements of 4 and 2 bits share bytes, the first in the low bits (onnx.proto, raw_data)."""
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    bits = _ELEMENT_BITS.get(canonical_dtype(data.dtype))
    if bits is None:
        return flat
    each = 8 // bits
    padded = np.zeros(-(-flat.size // each) * each, np.uint8)
    np.bitwise_and(flat, (1 << bits) - 1, out=padded[: flat.size])
    parts = padded.reshape(-1, each)
    packed = parts[:, 0].copy()
    for position in range(1, each):
        packed |= parts[:, position] << np.uint8(position * bits)
    return packed
