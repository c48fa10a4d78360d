"""Ranges of stored integers as QONNX states them: bits, signed, narrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from qconvert.graph import Array, Quantization, integer_range

__all__ = ["Range", "limits_of", "range_of", "storage"]

_WIDEST = 32
#: Integer types that integers are stored in, by whether they are signed: the first that has room.
_STORAGE = {True: ("int8", "uint8", "int16", "uint16"), False: ("uint8", "int8", "int16", "uint16")}


class Range(NamedTuple):
    """A range.

    Attributes:
        bits, signed, narrow: as Quant has them.
        offset: what is added to stored integers, and to zero points, so that they lie in it.
    """

    bits: int
    signed: bool
    narrow: bool
    offset: int


def limits_of(bits: int, signed: bool, narrow: bool) -> tuple[int, int]:
    """The integers of so many bits: a narrow range leaves out the lowest signed, or the highest unsigned one."""
    if signed:
        return -(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1
    return 0, 2**bits - 1 - narrow


def storage(limits: tuple[int, int], signed: bool, zero_points: Array, *, wide: bool = False) -> str | None:
    """The integer type that a tensor with such integers and zero points is stored in; None if no type has room.

    Args:
        limits: the smallest and the largest integer.
        signed: whether the node says that they are signed.
        zero_points: whole numbers.
        wide: whether int32 will do too.
    """
    low, high = min(limits[0], int(zero_points.min())), max(limits[1], int(zero_points.max()))
    types = (*_STORAGE[signed], "int32") if wide else _STORAGE[signed]
    return next((name for name in types if integer_range(name)[0] <= low and high <= integer_range(name)[1]), None)


def range_of(limits: tuple[int, int], quantization: Quantization) -> Range | None:
    """The range that holds just these integers, shifted if need be; None if they are not as many as any has.

    Of several, one in which the zero points are 0, as nothing is added before the rounding then; else one without a shift.
    """
    found = list(_ranges(limits))
    symmetric = [item for item in found if not (quantization.zero_point + item.offset).any()]
    unshifted = [item for item in found if not item.offset]
    return next(iter((*symmetric, *unshifted, *found)), None)


def _ranges(limits: tuple[int, int]) -> Iterator[Range]:
    for bits in range(1, _WIDEST + 1):
        for signed in (True, False):
            for narrow in (False, True):
                low, high = limits_of(bits, signed, narrow)
                if low < high and high - low == limits[1] - limits[0] and not (signed and bits == 1):
                    yield Range(bits, signed, narrow, low - limits[0])
