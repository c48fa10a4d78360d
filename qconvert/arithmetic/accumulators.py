"""The quantization of a sum of products: what a quantized bias is added on."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.arithmetic.quantization import Quantization

__all__ = ["accumulator_quantization", "accumulator_scale", "is_accumulator_scale"]

#: Largest relative difference of a stated bias scale from data scale * weight scale: a few roundings of float32.
_TOLERANCE = 1e-6


def accumulator_scale(data: Quantization, weights: Quantization) -> Array:
    """data scale * weight scale, a float32 product, for each output channel or for all (TFLite's specification; ONNX QLinearConv)."""
    with np.errstate(under="ignore", over="ignore"):
        return np.asarray(data.scale * weights.scale)


def accumulator_quantization(data: Quantization, weights: Quantization, axis: int = 0) -> Quantization:
    """The quantization of a bias that states none: scales as above along `axis`, or one, and zero point 0."""
    scale = accumulator_scale(data, weights)
    return Quantization.per_tensor(float(scale[0])) if weights.is_per_tensor else Quantization.per_axis(scale, axis)


def is_accumulator_scale(stated: Any, exact: Any) -> bool:
    """Whether stated scales are the products but for a few roundings; one stated scale may stand for equal ones."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool((np.abs(np.subtract(stated, exact)) <= _TOLERANCE * np.abs(exact)).all())
