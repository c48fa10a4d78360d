"""How numbers are stored: the storage types with their numpy types and ranges, scale and zero point, and the quantization of a sum of
products, which a quantized bias is added on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
#: Integers of 2 and 4 bits -> the type that holds one in a byte.
IN_BYTES = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}

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

#: Up to this float32 holds every whole number, so that sums of such numbers are exact, in whatever order they are made.
EXACT_IN_FLOAT32 = 2**24
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


def fits_dtype(data: Array, dtype: str) -> bool:
    """Whether numbers are integers of a type."""
    low, high = integer_range(dtype)
    data = in_bytes(data)
    inside = (data >= low) & (data < high + 1)  # no float32 is 2**31 - 1: beside one it is 2**31
    return bool((inside & np.isfinite(data) & (data == np.round(data))).all())


def integer_range(dtype: str) -> tuple[int, int]:
    """The smallest and largest stored value of an integer dtype, or of a float of 4 or 8 bits."""
    return _RANGES[dtype] if dtype in _RANGES else SMALL_FLOATS[dtype]


def bit_width(dtype: str) -> int:
    """How many bits the integers of a type have."""
    low, high = integer_range(dtype)
    return (high - low).bit_length()


def in_bytes(data: Array) -> Array:
    """Integers of 2 and 4 bits, which numpy knows as no integers, as those of 8 bits; other data as they are."""
    return data.astype(IN_BYTES[data.dtype.name]) if data.dtype.name in IN_BYTES else data


#: Rows and columns of a part of a transposed matrix whose source fits the first cache (128 lines of 64 bytes hold 8 KiB).
_TILE = 128
#: Bytes of an array that are copied at a time; an allocator reuses memory of this size.
_PIECE = 2**22


def contiguous(data: Array) -> Array:
    """The array in C order. A transposed matrix is copied in tiles, which takes a tenth of the time that numpy's own copy takes: each is
    brought together first, since the rows of a matrix of 2^n columns share a few lines of the cache."""
    if data.ndim != 2 or data.flags.c_contiguous or min(data.shape) < _TILE:
        return np.ascontiguousarray(data)
    found = np.empty(data.shape, data.dtype)
    for row in range(0, data.shape[0], _TILE):
        for column in range(0, data.shape[1], _TILE):
            found[row : row + _TILE, column : column + _TILE] = data[row : row + _TILE, column : column + _TILE].copy("K")
    return found


def contiguous_pieces(data: Array) -> Iterator[Array]:
    """The elements in C order, some MB at a time, so that an array that is transposed need not be in memory once more. Each piece but the
    last has a multiple of 8 elements."""
    if data.flags.c_contiguous:
        flat, step = data.reshape(-1), _PIECE // data.itemsize
        yield from (flat[start : start + step] for start in range(0, flat.size, step))
        return
    step = max(1, _PIECE // _TILE // max(1, data[0].nbytes)) * _TILE
    yield from (contiguous(data[start : start + step]).reshape(-1) for start in range(0, len(data), step))


def unpack_bits(packed: Array, bits: int) -> Array:
    """The integers of 2, 4 or 8 bits in bytes, the first in the lowest bits: uint8 [..., B] -> uint8 [..., B * 8 / bits]."""
    parts = np.stack([(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)], axis=-1)
    return parts.reshape(*packed.shape[:-1], packed.shape[-1] * 8 // bits)


def pack_bits(codes: Array, bits: int) -> Array:
    """The mirror of unpack_bits(): uint8 below 2^bits along the last axis in bytes, of which the last one is filled up with zeros."""
    each, count = 8 // bits, codes.shape[-1]
    padded = np.pad(codes, [*[(0, 0)] * (codes.ndim - 1), (0, -count % each)])
    parts = padded.reshape(*codes.shape[:-1], padded.shape[-1] // each, each) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(parts, axis=-1), np.uint8)


def equal_data(a: Array | None, b: Array | None) -> bool:
    """Whether two constants hold the same bits (NaN equals NaN, and -0.0 differs from 0.0)."""
    if a is None or b is None or a is b:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype == object or a.dtype.name in IN_BYTES:  # the unused high bits of their bytes mean nothing
        return bool((a == b).all())
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def read_only(data: Array) -> Array:
    """The array, or a view of it that cannot be written to."""
    if not data.flags.writeable:
        return data
    view = data.view()
    view.flags.writeable = False
    return view


def reduce_frozen(item: Any) -> tuple[Any, ...]:
    """How pickle and copy make an object: by its class, from its fields, so that the copy is frozen too. Views cannot be pickled."""
    values = (getattr(item, one.name) for one in fields(item) if one.init)
    return type(item), tuple(dict(value) if isinstance(value, MappingProxyType) else value for value in values)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Quantization:
    """real = scale * (stored - zero_point), as in the TFLite and ONNX specifications.

    Attributes:
        scale: float32, one value, or one for each index along `axis`, or in blocks: of the tensor's rank, and of its shape but for
            `axis`, which has one for each block.
        zero_point: int64, of the shape of `scale`.
        axis: the dimension that the scales run along; None means one scale for the whole tensor.
        block_size: elements along `axis` that share a scale; 0 means no blocks.
        quant_min: the smallest stored value in use (weights without -128, reduced ranges); None where it is the type's.
        quant_max: the largest, likewise.
    """

    scale: Array
    zero_point: Array
    axis: int | None = None
    block_size: int = 0
    quant_min: int | None = None
    quant_max: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", read_only(self.scale))
        object.__setattr__(self, "zero_point", read_only(self.zero_point))

    __reduce__ = reduce_frozen

    def __repr__(self) -> str:
        """`Quantization(scale=0.5, zero_point=3)`; of many scales the range, how many, and the axis."""
        if not self.scale.size:
            return f"Quantization(no scale, axis={self.axis})"
        parts = [f"scale={_range(self.scale)}", f"zero_point={_range(self.zero_point)}"]
        parts += [f"axis={self.axis}"] if self.axis is not None else []
        parts += [f"block_size={self.block_size}"] if self.block_size else []
        return f"Quantization({', '.join(parts)})"

    def __str__(self) -> str:
        """Scale and zero point; a range and the axis where there are many: "0.5 +3", "0.01..0.2 along 0"."""
        points = "" if not self.zero_point.any() else f" {int(self.zero_point.min()):+}"
        if self.scale.size == 1:
            return f"{float(self.scale.flat[0]):.6g}{points}"
        if not self.scale.size:
            return f"no scale along {self.axis}"
        several = f"{float(self.scale.min()):.3g}..{float(self.scale.max()):.3g}{points} along {self.axis}"
        return f"{several} in blocks of {self.block_size}" if self.block_size else several

    @classmethod
    def per_tensor(cls, scale: float, zero_point: int = 0) -> Quantization:
        """One scale and zero point for the whole tensor."""
        return cls(np.array([scale], np.float32), np.array([zero_point], np.int64))

    @classmethod
    def per_axis(cls, scale: Any, axis: int, zero_point: Any = 0) -> Quantization:
        """One scale for each index along `axis`; `zero_point` is one value for all or one each."""
        scale = np.asarray(scale, np.float32)
        return cls(scale, np.broadcast_to(np.asarray(zero_point, np.int64), scale.shape).copy(), axis)

    @classmethod
    def of_channels(cls, scale: Array, zero_point: Array, axis: int) -> Quantization:
        """Scales and zero points, one for all or one each for the channels along `axis`: per tensor where both are one."""
        count = max(scale.size, zero_point.size)
        scales, points = (np.broadcast_to(values.reshape(-1), (count,)) for values in (scale, zero_point))
        return cls(scales.astype(np.float32), points.astype(np.int64), axis if count > 1 else None)

    @property
    def is_per_tensor(self) -> bool:
        return self.axis is None

    @property
    def step(self) -> float:
        """The scale; the first of several."""
        return float(self.scale.flat[0])

    @property
    def point(self) -> int:
        """The zero point; the first of several."""
        return int(self.zero_point.flat[0])

    @property
    def is_symmetric(self) -> bool:
        return not self.zero_point.any()

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Equal for equal quantizations, to look them up by: arrays cannot be hashed."""
        arrays = self.scale.shape, self.scale.tobytes(), self.zero_point.tobytes()
        return (*arrays, self.axis, self.block_size, self.quant_min, self.quant_max)

    def limits(self, dtype: str) -> tuple[int, int]:
        """The smallest and largest stored value that is used of an integer dtype."""
        low, high = integer_range(dtype)
        return low if self.quant_min is None else self.quant_min, high if self.quant_max is None else self.quant_max

    def with_limits(self, dtype: str, low: float, high: float) -> Quantization:
        """The same scales for the stored values from `low` to `high` of a type alone."""
        lowest, highest = integer_range(dtype)
        return replace(self, quant_min=int(low) if low > lowest else None, quant_max=int(high) if high < highest else None)

    def shift_zero_point(self, offset: int) -> Quantization:
        """The quantization of the same float values when `offset` is added to every stored integer."""
        limits = (None if limit is None else limit + offset for limit in (self.quant_min, self.quant_max))
        return Quantization(self.scale, self.zero_point + offset, self.axis, self.block_size, *limits)

    def take(self, places: slice) -> Quantization:
        """The quantization of a part of the tensor, cut along the axis of the scales: itself where one scale stands for all."""
        if self.axis is None or self.scale.size == 1:
            return self
        return replace(self, scale=self.scale[places], zero_point=self.zero_point[places])

    def with_axis(self, axis: int | None) -> Quantization:
        """The same scales along another dimension, after a transposition."""
        return replace(self, axis=axis)

    def transpose(self, perm: Sequence[int]) -> Quantization:
        """The quantization of the tensor's transpose, whose axis i is the tensor's axis perm[i]."""
        if self.axis is None:
            return self
        axis = list(perm).index(self.axis)
        if self.scale.ndim == 1:
            return replace(self, axis=axis)
        return replace(self, axis=axis, scale=self.scale.transpose(perm), zero_point=self.zero_point.transpose(perm))

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Quantization) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def _range(values: Array) -> str:
    """One number where all are equal, else the smallest and the largest."""
    low, high = values.min(), values.max()
    return f"{low:.6g}" if low == high else f"{low:.3g}..{high:.3g}"


#: Largest relative difference of a stated bias scale from data scale * weight scale: a few roundings of float32.
_TOLERANCE = 1e-6


def accumulator_scale(data: Quantization, weights: Quantization) -> Array:
    """data scale * weight scale, a float32 product, for each output channel or for all (TFLite's specification; ONNX QLinearConv)."""
    with np.errstate(under="ignore", over="ignore"):
        return np.asarray(data.scale * weights.scale)


def accumulator_quantization(data: Quantization, weights: Quantization, axis: int = 0) -> Quantization:
    """The quantization of a bias that states none: scales as above along `axis`, or one, and zero point 0."""
    scale = accumulator_scale(data, weights)
    return Quantization.per_tensor(float(scale[0])) if weights.is_per_tensor else Quantization.per_axis(scale, axis)


def is_accumulator_scale(stated: Any, exact: Any) -> bool:
    """Whether stated scales are the products but for a few roundings; one stated scale may stand for equal ones."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool((np.abs(np.subtract(stated, exact)) <= _TOLERANCE * np.abs(exact)).all())
