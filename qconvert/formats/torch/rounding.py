"""How PyTorch puts float values with a quantization: three roundings, each found exactly, which differ in ties and last bits.

    ROUNDED    clamp(rint(x * inv) + zero_point)    fake_quantize_*, quantized_decomposed, torchao; inv = float32(1 / scale)
    FUSED      clamp(rint(fma(x, inv, zero_point))) torch.quantize_per_tensor
    SHIFTED    clamp(rint(x * inv + zero_point))    quantized_decomposed's groups and tokens

ONNX's rule, rint(x / scale) + zero_point, is that of the canonical graph: constants are rounded here, by PyTorch's own.
"""

from __future__ import annotations

import numpy as np

from qconvert.graph import Array, Quantization, numpy_dtype

__all__ = ["FUSED", "ROUNDED", "SHIFTED", "along_axis", "integers"]

ROUNDED, FUSED, SHIFTED = "rounded", "fused", "shifted"


def along_axis(values: Array, quantization: Quantization, shape: tuple[int, ...]) -> Array:
    """Scales or zero points of a quantization, so that they broadcast with data of a shape: along its axis, or in blocks."""
    if quantization.axis is None:
        return values.reshape(())
    if quantization.block_size:
        return np.repeat(values, quantization.block_size, axis=quantization.axis)[tuple(slice(size) for size in shape)]
    return values.reshape([-1 if axis == quantization.axis else 1 for axis in range(len(shape))])


def integers(data: Array, quantization: Quantization, dtype: str, order: str, exact: Array | None = None) -> Array:
    """The stored integers of constant float values.

    Args:
        data: float32.
        quantization: that they are put on, with its limits.
        dtype: the storage type.
        order: one of the three above.
        exact: the scales as the file has them, where these are float64; of the shape of quantization.scale.
    """
    scale = quantization.scale.astype(np.float64) if exact is None else exact.astype(np.float64)
    with np.errstate(all="ignore"):
        reciprocal = along_axis((1 / scale).astype(np.float32), quantization, data.shape)
        zero_point = along_axis(quantization.zero_point, quantization, data.shape)
        # the product of two float32 is exact in float64, and so is the sum but for values far outside of any quantization
        if order == FUSED:
            steps = np.rint((data.astype(np.float64) * reciprocal + zero_point).astype(np.float32))
        elif order == SHIFTED:
            steps = np.rint(data * reciprocal + zero_point.astype(np.float32))
        else:
            steps = np.rint(data * reciprocal).astype(np.float64) + zero_point
    low, high = quantization.limits(dtype)
    steps = np.nan_to_num(steps, nan=float(low)).astype(np.float64)  # float32 has no 2**31 - 1
    return np.asarray(np.clip(steps, low, high).astype(numpy_dtype(dtype)))
