"""Element types of OpenVINO and how constants of them are stored."""

from __future__ import annotations

import math

import numpy as np

from qconvert.plugin import Array, InvalidModelError, numpy_dtype, pack_bits, unpack_bits

#: OpenVINO's names of types -> those of the canonical graph.
DTYPES = {
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16", "boolean": "bool", "i4": "int4", "u4": "uint4",
    "f8e4m3": "float8e4m3fn",
    **{f"{letter}{bits}": f"{name}{bits}" for letter, name in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)},
}  # fmt: skip
#: Those of results, which have another name for truth values.
RESULT_DTYPES = {**DTYPES, "bool": "bool"}
TYPES = {name: own for own, name in DTYPES.items()}
BITS = {own: {"boolean": 8, "f8e4m3": 8, "bf16": 16}.get(own) or int(own[1:]) for own in DTYPES}


def array_of(data: Array, own: str, shape: tuple[int, ...]) -> Array:
    """Decode the elements of a constant.

    Args:
        data: uint8, its bytes.
        own: OpenVINO's name of the type.
        shape: sizes.

    Raises:
        InvalidModelError: there are more or fewer bytes than the shape needs.
    """
    count = math.prod(shape)
    if count == 0 and data.size == 1:  # OpenVINO writes a byte for a constant without elements
        data = data[:0]
    if (count * BITS[own] + 7) // 8 != data.size:
        raise InvalidModelError(f"{data.size} bytes are not {count} elements of {own}", rule="counts-differ")
    dtype = numpy_dtype(DTYPES[own])
    if BITS[own] == 4:  # two elements a byte, the first in the lower half
        halves = unpack_bits(data, 4)[:count]
        signed = halves.astype(np.int8) - 16 * (halves > 7) if own == "i4" else halves
        return np.asarray(signed.astype(dtype)).reshape(shape)
    if own == "boolean":
        return np.asarray(data != 0).reshape(shape)
    return np.frombuffer(data.tobytes() if data.ctypes.data % dtype.itemsize else data, dtype).reshape(shape)


def bytes_of(data: Array, own: str) -> Array:
    """Encode elements as the bytes of a constant, uint8."""
    if BITS[own] == 4:
        return pack_bits(data.astype(np.int8).reshape(-1).view(np.uint8) & 15, 4)
    return np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
