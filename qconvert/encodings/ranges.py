"""Quantizations made of ranges, and of weights."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import choose_quantization
from qconvert.arithmetic.dtypes import integer_range
from qconvert.encodings.types import Encoding, QParams, Range
from qconvert.errors import InvalidModelError, OptionError
from qconvert.graph import Op, Quantization, Tensor
from qconvert.operators import output_axis

__all__ = ["quantization_of", "symmetric_quantization", "weights_quantization"]


def quantization_of(range: Range, dtype: str = "int8", *, symmetric: bool = False, narrow: bool = False) -> QParams:
    """The quantization of an integer type that holds a range, which is extended to hold 0 (arithmetic/formulas.py has the formulas).

    Args:
        range: the range.
        dtype: int4 to int16, or unsigned.
        symmetric: with the zero point in the middle: 0, or 128 of uint8.
        narrow: without the smallest stored value, so that both signs have as many.

    Raises:
        OptionError: an unsigned or affine quantization is to be narrow.
    """
    low, high = integer_range(dtype)
    bits = (high - low).bit_length()
    if narrow and not (symmetric and low < 0):
        raise OptionError("a narrow range requires signed, symmetric quantization", rule="narrow-not-symmetric")
    if not symmetric:
        return QParams(*choose_quantization("google_affine", range.lowest, range.highest, bits, dtype=dtype, axis=range.axis))
    _, chosen = choose_quantization("google_symmetric", range.lowest, range.highest, bits, dtype=f"int{bits}", axis=range.axis)
    if low == 0:
        chosen = chosen.shift_zero_point((high + 1) // 2)
    limits = (-high, high) if narrow else (None, None)
    return QParams(dtype, Quantization(chosen.scale, chosen.zero_point, chosen.axis, 0, *limits))


def weights_quantization(tensor: Tensor, reader: Op) -> QParams:
    """int8 with scale max|w| / 127 of each output channel, as runtimes make them that state no scales of weights.

    Raises:
        InvalidModelError: a weight is NaN or infinite.
    """
    data = tensor.data
    assert data is not None
    axis = output_axis(reader, data.ndim)
    largest = np.abs(data.astype(np.float64)).max(axis=tuple(other for other in range(data.ndim) if other != axis), initial=0)
    if not np.isfinite(largest).all():
        raise InvalidModelError(
            "a weight is NaN or infinite",
            where=repr(tensor.name),
            remedy="Look for what went wrong in training.",
            rule="weights-not-finite",
        )
    return quantization_of(Range(-largest, largest, axis), symmetric=True, narrow=True)


def symmetric_quantization(found: Encoding) -> tuple[QParams, int | None]:
    """The quantization of an entry for a format of symmetric 8-bit quantizations, of a range the symmetric int8 one; and the zero point in
    the middle of its type, None for types of other widths."""
    if found.qparams is not None:
        return found.qparams, {"int8": 0, "uint8": 128}.get(found.qparams.dtype)
    assert found.range is not None
    return quantization_of(found.range, "int8", symmetric=True), 0
