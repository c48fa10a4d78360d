"""Storage types by their canonical names, and their numpy types and ranges."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

__all__ = [
    "DTYPES", "INTEGERS", "REALS", "SMALL_FLOATS", "Array", "canonical_dtype", "equal_data", "in_bytes", "integer_range", "numpy_dtype",
    "read_only",
]  # fmt: skip

Array = np.ndarray[Any, np.dtype[Any]]
_IN_BYTES = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}

DTYPES = (
    "bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint4", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "string",
    "uint2", "float4e2m1", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "unknown",
)  # fmt: skip

#: Types of float values; floats of 8 and 4 bits are storage for them, like integers.
REALS = ("float16", "bfloat16", "float32", "float64")

_PACKED = frozenset((
    "int2", "uint2", "int4", "uint4", "bfloat16", "float4e2m1", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
))  # fmt: skip
_ML_NAMES = {"float4e2m1": "float4_e2m1fn", "float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz",
             "float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2fnuz"}  # fmt: skip
_CANONICAL_NAMES = {other: name for name, other in _ML_NAMES.items()}

_RANGES = {
    "int2": (-2, 1),
    "uint2": (0, 3),
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}

#: Types whose values are whole numbers.
INTEGERS = tuple(_RANGES)

#: Floats that store quantized values, and the range of their finite ones.
SMALL_FLOATS = {"float4e2m1": (-6, 6), "float8e4m3fn": (-448, 448), "float8e4m3fnuz": (-240, 240), "float8e5m2": (-57344, 57344),
                 "float8e5m2fnuz": (-57344, 57344)}  # fmt: skip


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a canonical dtype name; types that numpy lacks come from ml_dtypes, those below 8 bits one element a byte."""
    if name in ("string", "unknown"):
        return np.dtype(object)
    if name in _PACKED:
        import ml_dtypes

        packed: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_NAMES.get(name, name)))
        return packed
    return np.dtype(name)


@cache  # numpy puts the name together again each time
def canonical_dtype(dtype: np.dtype[Any]) -> str:
    """The canonical name of a numpy dtype; see numpy_dtype()."""
    if dtype.kind in "OSU":
        return "string"
    name = dtype.name
    return _CANONICAL_NAMES.get(name, name)


def integer_range(dtype: str) -> tuple[int, int]:
    """The smallest and largest stored value of an integer dtype, or of a float of 4 or 8 bits."""
    return _RANGES[dtype] if dtype in _RANGES else SMALL_FLOATS[dtype]


def in_bytes(data: Array) -> Array:
    """Integers of 2 and 4 bits, which numpy knows as no integers, as those of 8 bits; other data as they are."""
    return data.astype(_IN_BYTES[data.dtype.name]) if data.dtype.name in _IN_BYTES else data


def equal_data(a: Array | None, b: Array | None) -> bool:
    """Whether two constants hold the same bits (NaN equals NaN, and -0.0 differs from 0.0)."""
    if a is None or b is None or a is b:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype == object or a.dtype.name in ("int2", "uint2", "int4", "uint4"):  # the unused high bits of their bytes mean nothing
        return bool((a == b).all())
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def read_only(data: Array) -> Array:
    """The array, or a view of it that cannot be written to."""
    if not data.flags.writeable:
        return data
    view = data.view()
    view.flags.writeable = False
    return view
