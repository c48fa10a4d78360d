"""What TFLite's comparisons of bytes compare: 256 times the float values, in integers, also where C leaves their shift undefined."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic.dtypes import Array, integer_range
from qconvert.arithmetic.quantization import Quantization
from qconvert.arithmetic.requantize import multiply_by_quantized_multiplier, quantize_multiplier, saturating_rounding_doubling_high_mul

__all__ = ["tflite_comparison_tables"]

#: The steps of a real 1 in which the kernels compare, as a shift.
_SHIFT = 8


def tflite_comparison_tables(quantization: Quantization, dtype: str) -> tuple[Array, ...]:
    """The number, int32, that EQUAL, LESS … compare for each stored integer, the lowest first; two such tables where C leaves it undefined.

    Scales from 1 on ask for a shift to the right by less than none. What LiteRT gives then on x86 is hardly more than the sign
    (MultiplyByQuantizedMultiplierSmallerThanOneExp in comparisons.cc, RoundingDivideByPOT in gemmlowp's fixedpoint.h), as vectors of
    integers are shifted by all of it. The last elements, which fill no vector of 8, are shifted by it modulo 32: the second table, other
    than the first from 2**16 on.

    Args:
        quantization: per tensor.
        dtype: "int8" or "uint8".
    """
    low, high = integer_range(dtype)
    steps = (np.arange(low, high + 1) - int(quantization.zero_point[0])) << _SHIFT
    multiplier, shift = (int(item) for item in quantize_multiplier(float(quantization.scale[0])))
    if shift <= 0:
        return (np.asarray(multiply_by_quantized_multiplier(steps, multiplier, shift)).astype(np.int32),)
    scaled = saturating_rounding_doubling_high_mul(steps, multiplier)
    mask = int(np.int64((1 << (-shift % 64)) - 1).astype(np.int32))
    rounded = (scaled & mask) > ((mask >> 1) + (scaled < 0))
    return tuple(np.asarray((scaled >> count) + rounded).astype(np.int32) for count in (31, -shift % 32))
