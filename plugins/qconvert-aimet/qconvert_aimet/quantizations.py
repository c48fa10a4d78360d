"""Quantizations of so many bits, from and to the integer types that store them."""

from __future__ import annotations

import numpy as np

from qconvert.plugin import Array, InvalidModelError, QParams, Quantization, UnsupportedError, integer_range

REMEDY = "Write qconvert's own encodings, a .json file."
#: Storage of so many bits; what is between uses a part of the next.
_STORED = (2, 4, 8, 16, 32)


def quantization_of_bits(
    bits: int, signed: bool, scale: Array, points: Array, axis: int | None = None, block_size: int = 0, *, where: str
) -> QParams:
    """Return the quantization of integers of so many bits.

    Args:
        bits: 2 to 32.
        signed: from -2^(bits - 1) instead of 0.
        scale: float64, as of a Quantization, or in blocks without an axis, as of an Encoding.
        points: int64, zero points, likewise.
        axis: axis of the scales or their blocks, or None.
        block_size: how many values share a scale; 0 for no blocks.
        where: the tensor, for errors.

    Raises:
        InvalidModelError: a scale is no positive float32, or a zero point is outside the range of the bits.
    """
    stored = next(size for size in _STORED if bits <= size)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    beyond = points[(points < low) | (points > high)]
    if beyond.size:
        raise InvalidModelError(
            f"the zero point is {beyond[0]}; {bits} bits hold {low} to {high}", where=repr(where), rule="zero-point-outside-type"
        )
    with np.errstate(over="ignore", under="ignore"):
        narrow = scale.astype(np.float32)
    limits = (low, high) if stored != bits else (None, None)
    return QParams(f"{'int' if signed else 'uint'}{stored}", Quantization(narrow, points, axis, block_size, *limits))


def bits_of(name: str, quantization: QParams, *, is_constant: bool) -> int:
    """Return how many bits a quantization uses: AIMET's quantizations are whole, -2^(bits - 1) to 2^(bits - 1) - 1, or from 0.

    Constants may leave out the smallest value: they are rounded already. Activations may not.

    Raises:
        UnsupportedError: it is on floats, or has other limits.
    """
    if not quantization.dtype.startswith(("int", "uint")) or integer_range(quantization.dtype)[1] >= 2**32:
        raise UnsupportedError(
            f"the type is {quantization.dtype}; AIMET's encodings require integers of at most 32 bits",
            where=repr(name),
            remedy=REMEDY,
            rule="dtype-not-storable",
        )
    low, high = quantization.quantization.limits(quantization.dtype)
    bits = (high - low).bit_length()
    whole = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if quantization.dtype.startswith("int") else (0, 2**bits - 1)
    if (low, high) == whole or (is_constant and (low, high) == (-whole[1], whole[1])):
        return bits
    raise UnsupportedError(
        f"the integers run from {low} to {high}; AIMET's encodings require the whole range of the bits",
        where=repr(name),
        remedy=REMEDY,
        rule="limits-not-storable",
    )
