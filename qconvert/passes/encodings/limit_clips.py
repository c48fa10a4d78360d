"""Quantize and Dequantize after tensors, literally; absorb_quantization makes quantized operators of that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.encodings import QParams
from qconvert.graph import Array, Quantization

__all__ = ["split_limits"]


def split_limits(quantization: QParams) -> tuple[Quantization, list[Array]]:
    """A quantization of the whole type, and the real bounds where it uses a part of it: between these a Clip keeps what is rounded."""
    q = quantization.quantization
    if q.quant_min is None and q.quant_max is None:
        return q, []
    with np.errstate(over="ignore"):  # at scales near the largest float32 a bound is infinite
        bounds = [np.asarray(np.float32(limit - int(q.zero_point[0])) * q.scale[0], np.float32) for limit in q.limits(quantization.dtype)]
    return replace(q, quant_min=None, quant_max=None), bounds
