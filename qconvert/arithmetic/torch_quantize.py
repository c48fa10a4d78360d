"""torch.quantize_per_tensor of PyTorch's engines: round(fma(x, 1 / scale, zero point)), and a form of it in plain float32 operators.

ONNX and TFLite round x / scale and add the zero point after that. The fused sum is rounded to float32 first: a value within 2^-18 of a tie
becomes the tie, which goes to the even integer, not to the even number of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array

__all__ = ["SplitProduct", "split_product", "torch_quantize"]

#: Steps that data may lie from zero, above all that any integer of 8 bits is made of.
_MOST_STEPS = 512
#: Neighbours of a limit between two integers that are tried; the form's error is below two of them.
_NEIGHBOURS = 6


def torch_quantize(x: Array, scale: Any, zero_point: int) -> Array:
    """Integers of uint8, as float32.

    Args:
        x: float32.
        scale: of the quantization, float32.
        zero_point: in unsigned storage, as PyTorch's kernels have it.
    """
    with np.errstate(all="ignore"):
        reciprocal = np.float32(1) / np.float32(scale)
        # The product of two float32 is exact in float64.
        steps = np.rint((x.astype(np.float64) * np.float64(reciprocal) + zero_point).astype(np.float32))
    return np.asarray(np.clip(np.nan_to_num(steps, nan=0.0, posinf=255.0, neginf=0.0), 0, 255))


@dataclass(frozen=True, slots=True)
class SplitProduct:
    """x / scale + zero point of float32 numbers, as (high * factors[0] + zero point) + (low * reciprocal + high * factors[1]).

    `high` is x with a coarse quantization, (x + border) - border, and `low` the rest: the first bracket is exact, the second small.

    Attributes:
        border: what is added and taken off again.
        factors: the reciprocal in two parts.
        reciprocal: of the scale.
        missed: how many float32 numbers, of all, become another integer.
    """

    border: float
    factors: tuple[float, float]
    reciprocal: float
    missed: int


def split_product(scale: Any, zero_point: int) -> SplitProduct | None:
    """The form that misses the fewest numbers, mostly none; None for scales at the ends of float32.

    Only numbers next to the limits between two integers can be missed, and these are all tried.
    """
    scale = np.float32(scale)
    if not 2.0**-80 < float(scale) < 2.0**80:
        return None
    reciprocal = np.float32(1) / scale
    tried = _next_to_limits(reciprocal, zero_point)
    wanted = torch_quantize(tried, scale, zero_point)
    mantissa, exponent = math.frexp(float(reciprocal))
    largest = math.ceil(math.log2(_MOST_STEPS / float(reciprocal)))
    found: list[SplitProduct] = []
    for bits in (12, 11, 10):
        for quantization in (largest - 12, largest - 13, largest - 11):
            first = np.float32(math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits))
            border = np.float32(math.ldexp(1.5, 23 + quantization))
            high = (tried + border) - border
            last = reciprocal - first
            steps = (high * first + np.float32(zero_point)) + ((tried - high) * reciprocal + high * last)
            missed = int(np.count_nonzero(np.clip(np.rint(steps), 0, 255) != wanted))
            found.append(SplitProduct(float(border), (float(first), float(last)), float(reciprocal), missed))
            if not missed:
                return found[-1]
    return min(found, key=lambda item: item.missed)


def _next_to_limits(reciprocal: Any, zero_point: int) -> Array:
    """The float32 numbers around every limit between two integers: half a last place of float32 on either side of each tie."""
    ties = np.arange(-1, 257)[:, None] - 0.5 - zero_point + np.array([-(2.0**-18), 2.0**-18])
    numbers = (ties / np.float64(reciprocal)).astype(np.float32).view(np.int32).reshape(-1)
    around = numbers[:, None] + np.arange(-_NEIGHBOURS, _NEIGHBOURS + 1, dtype=np.int32)
    return np.unique(around.astype(np.int32).view(np.float32))
