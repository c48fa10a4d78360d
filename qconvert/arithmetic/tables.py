"""Functions of one 8-bit tensor as tables of 256 integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array, integer_range, numpy_dtype
from qconvert.arithmetic.quantization import Quantization
from qconvert.arithmetic.rounding import dequantize, quantize

__all__ = ["lookup_table"]


def lookup_table(
    function: Callable[[Array], Any],
    given: Quantization,
    output: Quantization,
    dtype: str = "int8",
    output_dtype: str = "",
    rounding: str = "half_even",
    precision: str = "float64",
) -> Array:
    """The stored result of an elementwise function for each stored integer of its data, the lowest first.

    table[code - lowest] = quantize(function(dequantize(code))). Whatever the function, 256 codes are all that there is, so nothing is lost.
    Sources: TFLite, LUTPopulate (kernels/internal/common.h: half_away, float32) and TVM, relay/qnn/op/canonicalizations.py.
    NaN becomes the zero point, infinity the end of the type. TFLite multiplies by the reciprocal of the result's scale: its ties may
    fall to either side.

    Args:
        function: of an array of real numbers.
        given, output: quantizations of data and result, per tensor.
        dtype: of the data; 16 bits give 65,536 values.
        output_dtype: of the result, by default the same.
        rounding: one of ROUNDINGS.
        precision: in which the function and the quotient are computed.
    """
    low, high = integer_range(dtype)
    codes = np.arange(low, high + 1).astype(numpy_dtype(dtype))
    with np.errstate(all="ignore"):
        values = np.asarray(function(dequantize(codes, given).astype(precision)), precision)
    return quantize(values, output, output_dtype or dtype, rounding)
