"""Integers of a few bits in words of 32, as checkpoints store them: one stream along the last axis, lowest bits first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.arithmetic.dtypes import Array

__all__ = ["WORD", "columns_of_words", "pack", "to_row_major", "unpack", "unpack_bytes", "word_count"]


WORD = 32
_BYTE = 8
#: Nibbles in a word.
_PER_WORD = 8
#: Columns that are copied at once where a matrix is turned.
_COLUMNS = 64
_IN_ORDER = tuple(range(_PER_WORD))
#: Rows and columns of words that are turned at once, 512 KB.
_TILE = 512, 256
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
    stream = np.ascontiguousarray(words).view("<u4").view(np.uint8)
    if bits == _BYTE:
        return stream[..., :count]
    if bits in (2, 4):
        return unpack_bytes(stream, bits)[..., :count]
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


def unpack_bytes(stream: Array, bits: int) -> Array:
    """The integers of 2 or 4 bits in bytes, lowest bits first: uint8 [..., B] -> uint8 [..., B * 8 / bits]."""
    parts = np.stack([(stream >> shift) & (2**bits - 1) for shift in range(0, _BYTE, bits)], axis=-1)
    return parts.reshape(*stream.shape[:-1], -1)


def to_row_major(words: Array) -> Array:
    """A matrix of words with its rows one after another in memory: itself, or a copy of one that lies in columns.

    A few columns are copied at a time, so that a matrix on a mapped file is read in the order of the file.
    """
    if words.flags.c_contiguous or words.ndim != 2:
        return np.ascontiguousarray(words)
    found = np.empty(words.shape, words.dtype)
    for first in range(0, words.shape[1], _COLUMNS):
        found[:, first : first + _COLUMNS] = words[:, first : first + _COLUMNS]
    return found


def columns_of_words(words: Array, *, rows: Sequence[int] = _IN_ORDER, columns: Sequence[int] = _IN_ORDER) -> Array:
    """A matrix of nibbles, eight columns of a row in a word, as one of eight rows of a column in a word.

    Eight words of eight nibbles are turned as a matrix of 8 x 8 by exchanging halves three times, as one turns a matrix of bits (H. Warren,
    Hacker's Delight, 7-3).

    Args:
        words: uint32 [R, C], R a multiple of 8: nibble columns[j] of word (r, c) is the number of row r and column 8 c + j.
        rows: which row of eight each nibble of a result is of.
        columns: where in a word the nibbles of its eight columns stand.

    Returns:
        uint32 [8 C, R / 8]: nibble i of word (n, w) is that of row 8 w + rows[i] and column n.
    """
    count, width = words.shape
    turned = np.empty((width, _PER_WORD, count // _PER_WORD), np.uint32)
    for first in range(0, count, _TILE[0]):
        for left in range(0, width, _TILE[1]):
            tile = words[first : first + _TILE[0], left : left + _TILE[1]].view(np.uint32)
            part = np.ascontiguousarray(tile.reshape(-1, _PER_WORD, tile.shape[1]).transpose(1, 2, 0)[list(rows)])
            for half, mask in _HALVES:
                shift = np.uint32(4 * half)
                for low in (place for place in range(_PER_WORD) if not place & half):
                    moved = part[low] >> shift
                    moved ^= part[low + half]
                    moved &= mask
                    part[low + half] ^= moved
                    moved <<= shift
                    part[low] ^= moved
            end = first // _PER_WORD + part.shape[2]
            turned[left : left + tile.shape[1], :, first // _PER_WORD : end] = part[list(columns)].transpose(1, 0, 2)
    return turned.reshape(width * _PER_WORD, count // _PER_WORD)
