"""ggml's types of blocks: codes, scales, and zero points or offsets in their bytes. Formulas: ggml-quants.c, ggml-common.h.

The types of 32 values keep float16 d, and some m, before their codes. K-quants have 256 values in 8 or 16 blocks, whose scales are integers
times d, and whose minima are integers times dmin: their products are exact in float32. Values i and i + 16, or i and i + 32, share a byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from qconvert.plugin import E2M1, Array, BlockWeight, InvalidModelError, Needs, pack_words

#: Values of a block of the types that are written.
BLOCK = 32
_SUPER = 256
#: The values of the codes of IQ4_NL and IQ4_XS.
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_NIBBLES = np.array([0, 4], np.uint8)
_PAIRS = np.array([0, 2, 4, 6], np.uint8)
_BITS = np.arange(8, dtype=np.uint8)

#: Codes [blocks, values], scales [blocks, groups], and zero point, offsets or table.
_Parts = tuple[Array, Array, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class BlockKind:
    """One type of ggml.

    Attributes:
        bits: of a code.
        values: of a block in the file.
        read: uint8 [blocks, bytes] -> codes, scales, and zero point, offsets or table.
        needs: conditions of weights that the type can store; None if it is not written.
        write: codes [blocks, values], scale and offset [blocks, 1] -> uint8 [blocks, bytes].
    """

    bits: int
    values: int
    read: Callable[[Array], _Parts]
    needs: Needs | None = None
    write: Callable[[Array, Array, Array | None], Array] | None = None


def unpack_weight(data: Array, type: str, shape: tuple[int, ...]) -> BlockWeight:
    """Decode the weights in a tensor's bytes.

    Args:
        data: uint8, all bytes of the tensor.
        type: one of TYPES.
        shape: of the tensor.

    Returns:
        A row for each index of all axes but the last.
    """
    kind = KINDS[type]
    count = shape[-1] // kind.values
    with np.errstate(invalid="ignore"):  # scales that are not finite are an error of whoever requires them
        codes, scale, more = kind.read(data.reshape(-1, len(data.reshape(-1)) * kind.values // int(np.prod(shape))))
    rows = len(codes) // count
    for name in ("zero", "offset"):
        if name in more:
            more[name] = np.broadcast_to(more[name], scale.shape).reshape(rows, -1)
    words = pack_words(codes.reshape(rows, shape[-1]), kind.bits)
    return BlockWeight(words, kind.bits, shape[-1], scale.reshape(rows, -1), **more)


def require_finite_scales(weight: BlockWeight, name: str) -> None:
    """Raise InvalidModelError if a scale or an offset of the tensor is not finite."""
    if not np.isfinite(weight.scales).all() or (weight.offset is not None and not np.isfinite(weight.offset).all()):
        raise InvalidModelError("a scale is not finite", where=repr(name), rule="scale-not-finite")


def pack_weight(weight: BlockWeight, type: str) -> Array:
    """Encode a weight as blocks of a type, uint8 [rows, bytes]; the inverse of unpack_weight()."""
    kind = KINDS[type]
    assert kind.write is not None
    codes = weight.codes.reshape(-1, kind.values)
    offset = None if weight.offset is None else weight.offset.reshape(-1, 1)
    return np.ascontiguousarray(kind.write(codes, weight.scale.reshape(-1, 1), offset)).reshape(weight.outputs, -1)


def _read_float16(data: Array, first: int, count: int = 1) -> Array:
    """Return the float16 numbers of each block that begin at a byte."""
    return np.ascontiguousarray(data[:, first : first + 2 * count]).view("<f2")


def _extract_bits(data: Array, shifts: Array, size: int, mask: int) -> Array:
    """Extract bit fields: [blocks, bytes] in pieces of `size` -> [blocks, pieces * shifts * size], shift by shift."""
    pieces = data.reshape(len(data), -1, 1, size) >> shifts.reshape(1, 1, -1, 1)
    return (pieces & np.uint8(mask)).reshape(len(data), -1)


def _make_reader(bits: int, *, minimum: bool) -> Callable[[Array], _Parts]:
    """The reader of Q4_0 and Q5_0, or of Q4_1 and Q5_1, which have minima; of 5 bits the highest ones of a block stand together."""
    first = 4 if minimum else 2

    def read(data: Array) -> _Parts:
        codes = _extract_bits(data[:, first + (4 if bits == 5 else 0) :], _NIBBLES, BLOCK // 2, 15)
        if bits == 5:
            codes |= np.unpackbits(np.ascontiguousarray(data[:, first : first + 4]), axis=1, bitorder="little") << np.uint8(4)
        more: dict[str, Any] = {"offset": _read_float16(data, 2).astype(np.float32)} if minimum else {"zero": np.int16(2 ** (bits - 1))}
        return codes, _read_float16(data, 0), more

    return read


def _q8_0(data: Array) -> _Parts:
    return data[:, 2:] ^ np.uint8(0x80), _read_float16(data, 0), {"zero": np.int16(128), "is_signed": True}


def _q2_k(data: Array) -> _Parts:
    scales, ends = data[:, :16], _read_float16(data, 80, 2).astype(np.float32)
    return _extract_bits(data[:, 16:80], _PAIRS, 32, 3), ends[:, :1] * (scales & 15), {"offset": -(ends[:, 1:] * (scales >> 4))}


def _q3_k(data: Array) -> _Parts:
    lower = _extract_bits(data[:, 96:104], _NIBBLES, 8, 15)
    upper = _extract_bits(data[:, 104:108], _PAIRS, 4, 3)
    scales = (lower | upper << np.uint8(4)).astype(np.float32) - 32
    codes = _extract_bits(data[:, 32:96], _PAIRS, 32, 3) | _extract_bits(data[:, :32], _BITS, 32, 1) << np.uint8(2)
    return codes, _read_float16(data, 108).astype(np.float32) * scales, {"zero": np.int16(4)}


def _scales_and_minima(data: Array) -> tuple[Array, Array]:
    """Return the eight scales and minima of Q4_K and Q5_K, six bits each in twelve bytes, times d and dmin."""
    ends = _read_float16(data, 0, 2).astype(np.float32)
    first, second, mixed = data[:, 4:8], data[:, 8:12], data[:, 12:16]
    scales = np.concatenate([first & 63, (mixed & 15) | (first >> 2 & 48)], axis=1)
    minima = np.concatenate([second & 63, (mixed >> 4) | (second >> 2 & 48)], axis=1)
    return ends[:, :1] * scales, -(ends[:, 1:] * minima)


def _q4_k(data: Array) -> _Parts:
    scales, offsets = _scales_and_minima(data)
    return _extract_bits(data[:, 16:], _NIBBLES, 32, 15), scales, {"offset": offsets}


def _q5_k(data: Array) -> _Parts:
    scales, offsets = _scales_and_minima(data)
    codes = _extract_bits(data[:, 48:], _NIBBLES, 32, 15) | _extract_bits(data[:, 16:48], _BITS, 32, 1) << np.uint8(4)
    return codes, scales, {"offset": offsets}


def _q6_k(data: Array) -> _Parts:
    codes = _extract_bits(data[:, :128], _NIBBLES, 64, 15) | _extract_bits(data[:, 128:192], _PAIRS, 32, 3) << np.uint8(4)
    scales = np.ascontiguousarray(data[:, 192:208]).view(np.int8).astype(np.float32)
    return codes, _read_float16(data, 208).astype(np.float32) * scales, {"zero": np.int16(32)}


def _iq4_nl(data: Array) -> _Parts:
    return _extract_bits(data[:, 2:], _NIBBLES, BLOCK // 2, 15), _read_float16(data, 0), {"table": _IQ4}


def _iq4_xs(data: Array) -> _Parts:
    upper = np.ascontiguousarray(data[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    scales = (_extract_bits(data[:, 4:8], _NIBBLES, 1, 15) | upper << np.uint16(4)).astype(np.float32) - 32
    return _extract_bits(data[:, 8:], _NIBBLES, BLOCK // 2, 15), _read_float16(data, 0).astype(np.float32) * scales, {"table": _IQ4}


def _mxfp4(data: Array) -> _Parts:
    """The scale is that of E2M1 in halves, times two: a power of two of E8M0."""
    import ml_dtypes

    exponents = np.ascontiguousarray(data[:, :1]).view(ml_dtypes.float8_e8m0fnu)
    return _extract_bits(data[:, 1:], _NIBBLES, BLOCK // 2, 15), exponents, {"table": E2M1}


def _pack_nibbles(codes: Array) -> Array:
    low = codes & np.uint8(15)
    return low[:, : BLOCK // 2] | low[:, BLOCK // 2 :] << np.uint8(4)


def _pack_scales(scale: Array, offset: Array | None) -> Array:
    numbers = scale if offset is None else np.concatenate([scale, offset], axis=1)
    return np.ascontiguousarray(numbers.astype("<f2")).view(np.uint8)


def _write_integers(codes: Array, scale: Array, offset: Array | None, *, bits: int) -> Array:
    highest = [np.packbits(codes >> 4, axis=1, bitorder="little")] if bits == 5 else []
    return np.concatenate([_pack_scales(scale, offset), *highest, _pack_nibbles(codes)], axis=1)


def _write_q8(codes: Array, scale: Array, offset: Array | None) -> Array:
    return np.concatenate([_pack_scales(scale, None), codes ^ np.uint8(0x80)], axis=1)


def _write_mxfp4(codes: Array, scale: Array, offset: Array | None) -> Array:
    return np.concatenate([np.ascontiguousarray(scale).view(np.uint8), _pack_nibbles(codes)], axis=1)


def _needs(bits: int, zero: int | None) -> Needs:
    """Return the conditions of blocks of 32 with one zero point, or with minima."""
    return Needs((bits,), zeros=None if zero is None else lambda _: (zero, zero), has_offsets=zero is None, blocks=(BLOCK,))


def _kind_of_integers(bits: int, *, minimum: bool) -> BlockKind:
    needs = _needs(bits, None if minimum else 2 ** (bits - 1))
    return BlockKind(bits, BLOCK, _make_reader(bits, minimum=minimum), needs, partial(_write_integers, bits=bits))


KINDS = {
    "Q4_0": _kind_of_integers(4, minimum=False),
    "Q8_0": BlockKind(8, BLOCK, _q8_0, _needs(8, 128), _write_q8),
    "Q5_0": _kind_of_integers(5, minimum=False),
    "Q4_1": _kind_of_integers(4, minimum=True),
    "Q5_1": _kind_of_integers(5, minimum=True),
    "MXFP4": BlockKind(4, BLOCK, _mxfp4, Needs((4,), E2M1, scales=("float8_e8m0fnu",), blocks=(BLOCK,)), _write_mxfp4),
    "Q2_K": BlockKind(2, _SUPER, _q2_k),
    "Q3_K": BlockKind(3, _SUPER, _q3_k),
    "Q4_K": BlockKind(4, _SUPER, _q4_k),
    "Q5_K": BlockKind(5, _SUPER, _q5_k),
    "Q6_K": BlockKind(6, _SUPER, _q6_k),
    "IQ4_NL": BlockKind(4, BLOCK, _iq4_nl),
    "IQ4_XS": BlockKind(4, _SUPER, _iq4_xs),
}
TYPES = tuple(KINDS)
#: Those that are written, in the order of preference.
WRITTEN = tuple(name for name, kind in KINDS.items() if kind.write is not None)
