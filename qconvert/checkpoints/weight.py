"""The weight of a layer in blocks, as a checkpoint stores it: integers of a few bits, packed in words of 32, and the parameters that
dequantize them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array, unpack_bits
from qconvert.checkpoints.activations import Activations

WORD = 32
_BYTE = 8
#: Nibbles in a word.
_PER_WORD = 8
#: Rows and columns that are turned at once, 256 KB.
_TILE = 256
_IN_ORDER = tuple(range(_PER_WORD))
#: Of the number of one of eight places.
_BITS_OF_PLACES = 4, 2, 1
#: Rows of eight and columns of words that are turned at once, 1 MB, and the longest such rows where they may be long.
_TILE_OF_WORDS = 256, 128
_LONGEST_ROW = 2048
#: Words after each row of a tile: rows a power of two apart would share few lines of a cache.
_GAP = 1
#: How far rows of a matrix of nibbles are exchanged, and which nibbles of a word stay.
_HALVES = ((4, np.uint32(0x0000FFFF)), (2, np.uint32(0x00FF00FF)), (1, np.uint32(0x0F0F0F0F)))


def word_count(count: int, bits: int) -> int:
    """Words of a stream of so many integers."""
    return -(-count * bits // WORD)


def unpack(words: Array, bits: int, count: int) -> Array:
    """Integers of a few bits from a stream of words along the last axis, lowest bits first; they may cross words, as those of 3 bits do.

    Args:
        words: int32 or uint32, of shape [..., W].
        bits: of an integer, 1 to 8.
        count: how many integers the stream has; what follows is filling.

    Returns:
        uint8, of shape [..., count].
    """
    stream = to_row_major(words).view("<u4").view(np.uint8)
    if bits == _BYTE:
        return stream[..., :count]
    if bits in (2, 4):
        return unpack_bits(stream, bits)[..., :count]
    each = np.unpackbits(stream, axis=-1, bitorder="little")[..., : count * bits].reshape(*stream.shape[:-1], count, bits)
    return np.asarray((each << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8))


def pack(codes: Array, bits: int) -> Array:
    """The stream of words of integers along the last axis: the mirror of unpack(); filled up with zeros.

    Args:
        codes: uint8, of shape [..., count], each below 2^bits.
        bits: of an integer, 1 to 8.

    Returns:
        uint32, of shape [..., word_count(count, bits)].
    """
    count = codes.shape[-1]
    size = word_count(count, bits) * WORD // _BYTE
    stream = np.zeros((*codes.shape[:-1], size), np.uint8)
    if bits in (2, 4, _BYTE):
        for place in range(per_byte := _BYTE // bits):
            part = codes[..., place::per_byte]
            stream[..., : part.shape[-1]] |= part << np.uint8(place * bits)
    else:
        each = (codes[..., None] >> np.arange(bits, dtype=np.uint8)) & np.uint8(1)
        whole = np.packbits(each.reshape(*codes.shape[:-1], count * bits), axis=-1, bitorder="little")
        stream[..., : whole.shape[-1]] = whole
    return stream.view("<u4")


def words_of_bytes(codes: Array) -> Array:
    """Codes of 8 bits as a stream of words: uint8 [N, K] -> uint32 [N, K / 4], where K is filled up to a multiple of 4."""
    return pack(codes, _BYTE) if codes.shape[1] % (WORD // _BYTE) else np.ascontiguousarray(codes).view("<u4")


def words_of_integers(integers: Array, bits: int) -> Array:
    """Signed integers of some bits, int8 [N, K], as a stream of words of codes, which are counted from the smallest integer."""
    codes = integers.view(np.uint8) + np.uint8(symmetric_zero_point(bits))
    return words_of_bytes(codes) if bits == _BYTE else pack(codes, bits)


def to_row_major(words: Array) -> Array:
    """A matrix of words with its rows one after another in memory: itself, or a copy of one that lies in columns.

    Tiles are copied as they lie and then turned, so that a matrix on a mapped file is read in the order of the file.
    """
    if words.flags.c_contiguous or words.ndim != 2:
        return np.ascontiguousarray(words)
    found = np.empty(words.shape, words.dtype)
    room = np.empty((_TILE, _TILE + _GAP), words.dtype)
    for first in range(0, words.shape[0], _TILE):
        for left in range(0, words.shape[1], _TILE):
            area = slice(first, first + _TILE), slice(left, left + _TILE)
            tile = words[area]
            part = room[: tile.shape[1], : tile.shape[0]].T
            part[...] = tile
            found[area] = part
    return found


def columns_of_words(
    words: Array, *, rows: Sequence[int] = _IN_ORDER, columns: Sequence[int] = _IN_ORDER, is_row_major: bool = True
) -> Array:
    """A matrix of nibbles, eight columns of a row in a word, as one of eight rows of a column in a word.

    Eight words of eight nibbles are turned as a matrix of 8 x 8 by exchanging halves three times, as one turns a matrix of bits (H. Warren,
    Hacker's Delight, 7-3). Which words are exchanged by how many nibbles depends on both orders.

    Args:
        words: uint32 [R, C], R a multiple of 8: nibble columns[j] of word (r, c) is the number of row r and column 8 c + j.
        rows: which row of eight each nibble of a result is of; each bit of a row's number is one of the nibble's.
        columns: where in a word the nibbles of its eight columns stand; likewise.
        is_row_major: whether rows of the result lie one after another in memory, else its columns, which takes less time where those of
            `words` are rows.

    Returns:
        uint32 [8 C, R / 8]: nibble i of word (n, w) is that of row 8 w + rows[i] and column n.
    """
    count, width = words.shape
    groups = count // _PER_WORD
    made = np.empty((width, _PER_WORD, groups) if is_row_major else (groups, width, _PER_WORD), np.uint32)
    source = words.reshape(groups, 2, 2, 2, width).transpose(1, 2, 3, 0, 4)
    places = made.reshape((width, 2, 2, 2, groups) if is_row_major else (groups, width, 2, 2, 2))
    places = places.transpose((1, 2, 3, 4, 0) if is_row_major else (2, 3, 4, 0, 1))
    # the axis of three that each bit of a nibble's place stands for
    of_rows = [_BITS_OF_PLACES.index(rows[bit]) for bit in _BITS_OF_PLACES]
    of_columns = [[columns[bit] for bit in _BITS_OF_PLACES].index(bit) for bit in _BITS_OF_PLACES]
    if is_row_major:  # the axes are permuted where they are not those of neighbours in memory
        exchanged, places = of_rows, places.transpose(*(of_columns[of_rows.index(axis)] for axis in range(3)), 3, 4)
    else:
        exchanged, source = of_columns, source.transpose(*(of_rows[of_columns.index(axis)] for axis in range(3)), 3, 4)
    is_turned = words.strides[0] < words.strides[1]
    if is_turned:  # what lies together in the source is copied together
        source, places = source.swapaxes(3, 4), places.swapaxes(3, 4)
    high, wide = _TILE_OF_WORDS
    if is_turned is is_row_major:  # eight words lie together on one side, and long rows on the other
        wide = min(source.shape[4], _LONGEST_ROW)
        high = max(_TILE_OF_WORDS[0] * _TILE_OF_WORDS[1] // wide, 1)
    room = np.empty(_PER_WORD * high * (wide + _GAP), np.uint32)
    spare = np.empty(room.size // 2, np.uint32)
    for first in range(0, source.shape[3], high):
        for left in range(0, source.shape[4], wide):
            area = slice(first, first + high), slice(left, left + wide)
            tile = source[..., *area]
            part = room[: tile[..., 0].size * (tile.shape[4] + _GAP)].reshape(*tile.shape[:4], -1)
            part[..., :-_GAP] = tile
            _exchange_halves(part, exchanged, spare)
            places[..., *area] = part[..., :-_GAP]
    found = made.reshape((-1, groups) if is_row_major else (groups, -1))
    return found if is_row_major else found.T


def _exchange_halves(words: Array, axes: Sequence[int], spare: Array) -> None:
    """Exchange nibbles four, two and one places apart of the words whose indices differ in an axis of three, in place.

    Args:
        words: [2, 2, 2, …].
        axes: the axis for each of these distances; with 0, 1, 2 each 8 x 8 nibbles are turned.
        spare: room for half as many words.
    """
    for axis, (places, mask) in zip(axes, _HALVES, strict=True):
        pairs = words.reshape(2**axis, 2, -1)
        low, high = pairs[:, 0], pairs[:, 1]
        moved, shift = spare[: low.size].reshape(low.shape), np.uint32(4 * places)
        np.right_shift(low, shift, out=moved)
        moved ^= high
        moved &= mask
        high ^= moved
        moved <<= shift
        low ^= moved


def _values_of_e4m3() -> Array:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, (codes & 7) / 8
    values = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * np.exp2(exponent - 7.0))
    values[codes & 127 == 127] = np.nan
    return np.where(codes < 128, values, -values).astype(np.float32)


#: The values of the codes of FP4 (OCP Microscaling Formats 1.0, E2M1).
E2M1: Array = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
#: Those of FP8 (OCP 8-bit Floating Point Specification 1.0, E4M3); two codes are no numbers, and no weight has them.
E4M3: Array = _values_of_e4m3()
#: Outputs and inputs of a block, where blocks have several of both.
_SQUARE = 128

_LARGEST_INT8 = 127
#: Values that are floats at once.
_AT_ONCE = 2**22


def symmetric_zero_point(bits: int) -> int:
    """The zero point of symmetric integers, which are stored without a sign."""
    return int(2 ** (bits - 1))


def symmetric_zeros(scale: Array, bits: int) -> Array:
    """The zero points of blocks of symmetric integers, int16 of the shape of their scales."""
    return np.full(scale.shape, symmetric_zero_point(bits), np.int16)


def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy dtype of scales or codes by its name, those of ml_dtypes among them."""
    if name in ("float16", "float32"):
        return np.dtype(name)
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def to_float32(numbers: Array) -> Array:
    """Numbers as float32, which holds those of every type of scales."""
    return numbers.astype(np.float32)


@dataclass(frozen=True, eq=False)
class BlockWeight:
    """The weight of a linear layer, with a scale for each block of inputs.

    The real value of a code q in a block is scale * (q - zero) + offset, zero and offset being 0 where they are None, or scale * table[q]
    where codes have a table. The scale is `scale` times `outer`, or divided by it. Where `outer_is_last`, the value is scale * (q - zero)
    times `outer`, each of both products rounded to float32.

    Attributes:
        words: uint32 [N, W], a row for each output: the codes, without a sign, in a stream along the inputs, see unpack().
        bits: of a code, 2 to 8.
        inputs: K.
        scale: [N, G], one for each block of K / G inputs, in the type that the file has.
        zero: int16 [N, G]; None for none.
        offset: [N, G] in the type of the scales; None for none.
        table: float32 [2^bits], the values of codes; None for integers.
        outer: float32 [1, 1], a second level of scales; None for none.
        outer_divides: whether scales are divided by it.
        outer_is_last: whether the products of codes and scales are multiplied by it, instead of the scales: each value is rounded twice.
        groups: int32 [K], the block of each input, where these are not in order (act-order); None where they are.
        factors: float32 [K], what data are multiplied by first; None for nothing.
        experts: whose outputs the rows are, those of one after those of the other, as many of each; 0 where the layer is one.
        is_signed: whether the tool counts codes from -2^(bits - 1): zero points are the same, less this.
        activations: how data are rounded before the product; None where they stay float.
    """

    words: Array
    bits: int
    inputs: int
    scale: Array
    zero: Array | None = None
    offset: Array | None = None
    table: Array | None = None
    outer: Array | None = None
    outer_divides: bool = False
    outer_is_last: bool = False
    groups: Array | None = None
    factors: Array | None = None
    experts: int = 0
    is_signed: bool = False
    activations: Activations | None = None

    @property
    def outputs(self) -> int:
        """N."""
        return int(self.words.shape[0])

    @property
    def block(self) -> int:
        """Inputs of a block."""
        return self.inputs // int(self.scale.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K], of several experts [E, N, K]."""
        return (self.experts, self.outputs // self.experts, self.inputs) if self.experts else (self.outputs, self.inputs)

    @property
    def is_symmetric(self) -> bool:
        """Whether every zero point is the middle of the codes."""
        return self.zero is not None and self.offset is None and bool((self.zero == symmetric_zero_point(self.bits)).all())

    @property
    def strategy(self) -> str:
        """Which weights share a scale: "tensor" for all, "channel" for an output, "block" for 128 outputs and inputs, or "group"."""
        if self.scale.shape[1] == 1:
            return "tensor" if self.shares_scales(self.outputs) else "channel"
        return "block" if self.block == _SQUARE and self.shares_scales(_SQUARE) else "group"

    def shares_scales(self, count: int) -> bool:
        """Whether so many outputs after each other have the same scales."""
        if not np.array_equal(to_float32(self.scale[:1]), to_float32(self.scale[min(count, self.outputs) - 1 :][:1])):
            return False  # which of most weights is so
        scale = to_float32(self.scale)
        return bool((np.repeat(scale[::count], count, axis=0)[: self.outputs] == scale).all())

    @cached_property
    def codes(self) -> Array:
        """uint8 [N, K]."""
        return unpack(self.words, self.bits, self.inputs)

    @property
    def used_codes(self) -> Array:
        """Whether each code is that of a weight: bool [2^bits]."""
        found = np.zeros(2**self.bits, bool)
        found[self.codes] = True
        return found

    @property
    def scales(self) -> Array:
        """The scales of blocks with both levels: float32 [N, G]."""
        if self.outer is None:
            return to_float32(self.scale)
        return to_float32(self.scale) / self.outer if self.outer_divides else to_float32(self.scale) * self.outer

    def pieces(self, together: int = 1) -> Iterator[BlockWeight]:
        """The weight in parts of some outputs each, a multiple of `together`, so that few of its values are in memory as floats at once."""
        step = max(1, _AT_ONCE // (self.inputs * together)) * together
        for first in range(0, self.outputs, step):
            yield self.rows(slice(first, first + step))

    def floats(self, dtype: np.dtype[Any]) -> Array:
        """What data are multiplied by, as its tool computes it, in a type: [N, K]."""
        found = np.empty((self.outputs, self.inputs), dtype)
        first = 0
        for piece in self.pieces():
            values = piece.values()
            found[first : first + piece.outputs] = values if self.factors is None else values * self.factors
            first += piece.outputs
        return found

    def integers(self) -> BlockWeight:
        """The weight with integers of 8 bits instead of codes whose values are halves of such; itself where it has others.

        FP4 becomes -12 to 12 with half the scale: the same values, in types that more runtimes have.
        """
        if self.table is None:
            return self
        values = np.where(self.used_codes, self.table, np.float32(0))
        times = 1 if np.array_equal(values, np.rint(values)) else 2
        values *= np.float32(times)
        if not np.array_equal(values, np.rint(values)) or np.abs(values).max() > _LARGEST_INT8:
            return self
        codes = (values + symmetric_zero_point(8)).astype(np.uint8)[self.codes]
        scale = self.scales / np.float32(times)
        zero = symmetric_zeros(scale, 8)
        return replace(self, words=pack(codes, 8), bits=8, scale=scale, zero=zero, table=None, outer=None, is_signed=True)

    def rows(self, rows: slice | Array) -> BlockWeight:
        """The weight of some outputs, or of outputs in another order."""
        zero = None if self.zero is None else self.zero[rows]
        offset = None if self.offset is None else self.offset[rows]
        return replace(self, words=self.words[rows], scale=self.scale[rows], zero=zero, offset=offset)

    def exact_values(self) -> Array:
        """The multipliers of the data, factors included, unrounded unless the values themselves are rounded twice: float64 [N, K]."""
        if self.outer_is_last:
            return self.floats(np.dtype(np.float32)).astype(np.float64)
        of_input = self.blocks_of_inputs
        scales = self.scales.astype(np.float64)[:, of_input]
        steps = self.codes.astype(np.float64) if self.table is None else self.table.astype(np.float64)[self.codes]
        if self.zero is not None:
            steps -= self.zero[:, of_input]
        values = steps * scales
        if self.offset is not None:
            values += self.offset.astype(np.float64)[:, of_input]
        return values if self.factors is None else values * self.factors

    def has_same_numbers(self, other: BlockWeight) -> bool:
        """Whether both have the same codes, parameters and order of inputs; else their values may still be the same."""
        if (self.bits, self.outer_divides, self.outer_is_last) != (other.bits, other.outer_divides, other.outer_is_last):
            return False
        names = "scale", "zero", "offset", "table", "outer", "groups", "factors", "words"
        return all(_are_equal(getattr(self, name), getattr(other, name)) for name in names)

    @property
    def blocks_of_inputs(self) -> Array:
        """The block of each input: int [K]."""
        return self.groups if self.groups is not None else np.arange(self.inputs) // self.block

    def values(self) -> Array:
        """The real weights, float32 [N, K]; products and sums with an offset are rounded to its type, as MLX computes them."""
        of_input = self.blocks_of_inputs
        scales = self.scales[:, of_input]
        if self.table is not None:
            return np.asarray(self.table[self.codes] * scales)
        steps = self.codes.astype(np.float32)
        if self.zero is not None:
            steps -= self.zero.astype(np.float32)[:, of_input]
        if self.outer_is_last:
            assert self.outer is not None
            return np.asarray(steps * to_float32(self.scale)[:, of_input] * self.outer)
        if self.offset is None:
            return steps * scales
        products = (steps * scales).astype(self.offset.dtype)
        return to_float32((to_float32(products) + to_float32(self.offset)[:, of_input]).astype(self.offset.dtype))


def _are_equal(first: Array | None, second: Array | None) -> bool:
    if first is None or second is None:
        return first is second
    return first.dtype == second.dtype and np.array_equal(first, second)


def comparable_values(first: BlockWeight, second: BlockWeight) -> tuple[Array, Array]:
    """The values of two weights, float64 [N, K]: without rounding, or both as float32 where one of them is defined by its roundings."""
    if first.outer_is_last or second.outer_is_last:
        dtype = np.dtype(np.float32)
        return first.floats(dtype).astype(np.float64), second.floats(dtype).astype(np.float64)
    return first.exact_values(), second.exact_values()
