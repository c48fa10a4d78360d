"""The weight of a layer in blocks, as a checkpoint stores it: integers of a few bits, and the parameters that dequantize them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.checkpoints.packing import pack, unpack

__all__ = ["E2M1", "BlockWeight", "symmetric_zero_point", "to_float32"]


#: The values of the codes of FP4 (OCP Microscaling Formats 1.0, E2M1).
E2M1: Array = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)

_LARGEST_INT8 = 127
#: Values that are floats at once.
_AT_ONCE = 2**22


def symmetric_zero_point(bits: int) -> int:
    """The zero point of symmetric integers, which are stored without a sign."""
    return int(2 ** (bits - 1))


def to_float32(numbers: Array) -> Array:
    """Numbers as float32, which holds those of every type of scales."""
    return numbers.astype(np.float32)


@dataclass(frozen=True, eq=False)
class BlockWeight:
    """The weight of a linear layer, with a scale for each block of inputs.

    The real value of a code q in a block is scale * (q - zero), scale * q + offset where the block has an offset, or scale * table[q] where
    codes have a table. The scale is `scale` times `outer`, or divided by it.

    Attributes:
        words: uint32 [N, W], a row for each output: the codes, without a sign, in a stream along the inputs (see packing).
        bits: of a code, 2 to 8.
        inputs: K.
        scale: [N, G], one for each block of K / G inputs, in the type that the file has.
        zero: int16 [N, G]; None where there is an offset or a table.
        offset: [N, G] in the type of the scales; None for none.
        table: float32 [2^bits], the values of codes; None for integers.
        outer: float32 [1, 1], a second level of scales; None for none.
        outer_divides: whether scales are divided by it.
        groups: int32 [K], the block of each input, where these are not in order (act-order); None where they are.
        factors: float32 [K], what data are multiplied by first; None for nothing.
        is_signed: whether the tool counts codes from -2^(bits - 1): zero points are the same, less this.
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
    groups: Array | None = None
    factors: Array | None = None
    is_signed: bool = False

    @property
    def outputs(self) -> int:
        """N."""
        return int(self.words.shape[0])

    @property
    def block(self) -> int:
        """Inputs of a block."""
        return self.inputs // int(self.scale.shape[1])

    @property
    def is_symmetric(self) -> bool:
        """Whether every zero point is the middle of the codes."""
        return self.zero is not None and bool((self.zero == symmetric_zero_point(self.bits)).all())

    @cached_property
    def codes(self) -> Array:
        """uint8 [N, K]."""
        return unpack(self.words, self.bits, self.inputs)

    @property
    def scales(self) -> Array:
        """The scales of blocks with both levels: float32 [N, G]."""
        if self.outer is None:
            return to_float32(self.scale)
        return to_float32(self.scale) / self.outer if self.outer_divides else to_float32(self.scale) * self.outer

    def pieces(self) -> Iterator[BlockWeight]:
        """The weight in parts of some outputs each, so that few of its values are in memory as floats at once."""
        step = max(1, _AT_ONCE // self.inputs)
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
        """The weight with integers of 8 bits instead of a table whose values are halves of such; itself where it has none.

        FP4 becomes -12 to 12 with half the scale: the same values, in types that more runtimes have.
        """
        if self.table is None:
            return self
        times = 1 if np.array_equal(self.table, np.rint(self.table)) else 2
        values = self.table * np.float32(times)
        if not np.array_equal(values, np.rint(values)) or np.abs(values).max() > _LARGEST_INT8:
            return self
        codes = (values + symmetric_zero_point(8)).astype(np.uint8)[self.codes]
        scale = self.scales / np.float32(times)
        zero = np.full(scale.shape, symmetric_zero_point(8), np.int16)
        return replace(self, words=pack(codes, 8), bits=8, scale=scale, zero=zero, table=None, outer=None, is_signed=True)

    def rows(self, rows: slice | Array) -> BlockWeight:
        """The weight of some outputs, or of outputs in another order."""
        zero = None if self.zero is None else self.zero[rows]
        offset = None if self.offset is None else self.offset[rows]
        return replace(self, words=self.words[rows], scale=self.scale[rows], zero=zero, offset=offset)

    def exact_values(self) -> Array:
        """What data are multiplied by, factors included, without rounding: float64 [N, K]."""
        of_input = self._blocks_of_inputs()
        scales = self.scales.astype(np.float64)[:, of_input]
        steps = self.codes.astype(np.float64) if self.table is None else self.table.astype(np.float64)[self.codes]
        if self.zero is not None:
            steps -= self.zero[:, of_input]
        values = steps * scales
        if self.offset is not None:
            values += self.offset.astype(np.float64)[:, of_input]
        return values if self.factors is None else values * self.factors

    def _blocks_of_inputs(self) -> Array:
        return self.groups if self.groups is not None else np.arange(self.inputs) // self.block

    def values(self) -> Array:
        """The real weights, float32 [N, K]; products and sums with an offset are rounded to its type, as MLX computes them."""
        of_input = self._blocks_of_inputs()
        scales = self.scales[:, of_input]
        if self.table is not None:
            return np.asarray(self.table[self.codes] * scales)
        if self.offset is None:
            assert self.zero is not None
            return (self.codes.astype(np.float32) - self.zero.astype(np.float32)[:, of_input]) * scales
        products = (self.codes.astype(np.float32) * scales).astype(self.offset.dtype)
        return to_float32((to_float32(products) + to_float32(self.offset)[:, of_input]).astype(self.offset.dtype))
