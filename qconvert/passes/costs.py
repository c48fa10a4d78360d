"""What a change of quantizations costs a tensor: weights by their values, activations over all codes of their quantization."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import dequantize, quantize, scale_and_zero_point
from qconvert.graph import Array, Quantization, Tensor
from qconvert.plugins import Cost

__all__ = ["activation_cost", "cost", "tensor_cost"]


def cost(name: str, real: Array, error: Array, step: Array) -> Cost | None:
    """What an error costs; None if there is none.

    Args:
        name: of the tensor.
        real: its float values before, in float64.
        error: of each.
        step: of the new quantization, one or one for each value.
    """
    signal, noise = (float(np.square(values).sum()) for values in (real, error))
    if not noise:
        return None
    return Cost(name, float(10 * np.log10(max(signal / noise, 1e-30))), float((np.abs(error) / step).max(initial=0.0)))


def tensor_cost(old: Tensor, new: Tensor) -> Cost | None:
    """What a quantized constant loses with a new quantization, by value; None if nothing."""
    assert old.data is not None and new.data is not None and old.quantization is not None and new.quantization is not None
    real = dequantize(old.data, old.quantization)
    step, _ = scale_and_zero_point(new.quantization, new.data.shape)
    return cost(old.name, real, dequantize(new.data, new.quantization) - real, step)


def activation_cost(name: str, old: Quantization, dtype: str, new: Quantization, stored: str = "") -> Cost | None:
    """What an activation loses if each code of its quantization goes through another quantization; None if nothing. Of several scales the
    worst counts.

    Args:
        name: of the activation.
        old: its quantization.
        dtype: of `old`; at most 16 bits.
        new: the other quantization, in `stored`, by default the same type; with one scale, or as many as `old`.
    """
    low, high = old.limits(dtype)
    codes = np.arange(low, high + 1, dtype=np.int64)
    found = []
    for index in range(old.scale.size):
        before, after = (Quantization.per_tensor(*_qparams_at(quantization, index)) for quantization in (old, new))
        limited = Quantization(after.scale, after.zero_point, quant_min=new.quant_min, quant_max=new.quant_max)
        real = dequantize(codes, before)
        found.append(cost(name, real, dequantize(quantize(real, limited, stored or dtype), after) - real, after.scale))
    return min((item for item in found if item is not None), key=lambda item: item.sqnr_db or 0.0, default=None)


def _qparams_at(quantization: Quantization, index: int) -> tuple[float, int]:
    index = min(index, quantization.scale.size - 1)
    return float(quantization.scale.reshape(-1)[index]), int(quantization.zero_point.reshape(-1)[index])
