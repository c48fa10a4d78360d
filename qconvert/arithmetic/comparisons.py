"""What TFLite's comparisons of bytes compare: 256 times the real values, in integers, also where C leaves their shift undefined."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic.dtypes import Array, integer_range
from qconvert.arithmetic.quantization import Quantization
from qconvert.arithmetic.requantize import multiply_by_quantized_multiplier, quantize_multiplier, saturating_rounding_doubling_high_mul

__all__ = ["tflite_compared"]

#: The steps of a real 1 in which the kernels compare, as a shift.
_SHIFT = 8


def tflite_compared(grid: Quantization, dtype: str) -> tuple[Array, bool]:
    """The number, int32, that EQUAL, LESS … compare for each stored integer, the lowest first; and whether C leaves it undefined.

    Scales from 1 on ask for a shift to the right by less than none. What LiteRT gives then on x86 is hardly more than the sign
    (MultiplyByQuantizedMultiplierSmallerThanOneExp in comparisons.cc, RoundingDivideByPOT in gemmlowp's fixedpoint.h), as vectors of
    integers are shifted; from 2**16 on the last elements of the data, which fill no vector, are shifted otherwise, and are not known.

    Args:
        grid: per tensor.
        dtype: "int8" or "uint8".
    """
    low, high = integer_range(dtype)
    steps = (np.arange(low, high + 1) - int(grid.zero_point[0])) << _SHIFT
    multiplier, shift = (int(item) for item in quantize_multiplier(float(grid.scale[0])))
    if shift <= 0:
        return np.asarray(multiply_by_quantized_multiplier(steps, multiplier, shift)).astype(np.int32), False
    scaled = saturating_rounding_doubling_high_mul(steps, multiplier)
    mask = int(np.int64((1 << (-shift % 64)) - 1).astype(np.int32))
    found = (scaled >> 31) + ((scaled & mask) > ((mask >> 1) + (scaled < 0)))
    return np.asarray(found).astype(np.int32), True
