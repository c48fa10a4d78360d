"""Rounding of real data to 8 bits at each run, as kernels for dynamic range do it (TFLite calls them hybrid).

Sources: XNNPACK's qd8 rounding (xnn_f32_qd8_asymmetric_quantization_params, f32-qs8-vcvt), TFLite's PortableSymmetricQuantizeFloats and
PortableAsymmetricQuantizeFloats (portable_tensor_utils.cc), ONNX DynamicQuantizeLinear-11. All compute in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qconvert.arithmetic.dtypes import Array

__all__ = ["DYNAMIC_ROUNDINGS", "OF_ROWS", "OF_WHOLE_TENSORS", "dynamic_steps"]

#: A value nearer than this to the middle between two steps may fall to either side where kernels take a reciprocal for a division.
_NEAR = 1e-4
_F32 = np.float32


def dynamic_steps(x: Array, axes: Sequence[int], rounding: str) -> tuple[Array, Array, Array]:
    """Data as whole steps times a scale, and by how many steps a kernel that rounds a tie otherwise may differ from that.

    Args:
        x: float32.
        axes: over which one range is taken; none stands for a range of its own for each value.
        rounding: one of DYNAMIC_ROUNDINGS.

    Returns:
        Integers less the zero point, their scale (of size 1 along `axes`), and 1 where a value, or the end of its range, is near a tie,
        else 0; all float64.
    """
    x = np.asarray(x, np.float32)
    span = tuple(axes)
    low, high = (np.asarray(end(x, axis=span, keepdims=True, initial=0), np.float32) for end in (np.min, np.max))
    with np.errstate(all="ignore"):
        steps, scale, scaled, at_end = DYNAMIC_ROUNDINGS[rounding](x, low, high)
        near = np.abs(np.abs(scaled - np.floor(scaled)) - 0.5) <= _NEAR
    return steps.astype(np.float64), scale.astype(np.float64), (near | at_end).astype(np.float64)


_Rounded = tuple[Array, Array, Array, Array]


def _clip_steps(scaled: Array, zero_point: Array, exact_point: Array, lowest: int, highest: int) -> tuple[Array, Array]:
    """Rounded steps, cut off at the ends of the type; and where they are cut off, if the zero point itself is near a tie."""
    steps = np.clip(np.rint(scaled) + zero_point, lowest, highest)
    unsure = np.abs(np.abs(exact_point - np.floor(exact_point)) - 0.5) <= _NEAR
    return steps - zero_point, unsure & ((steps <= lowest) | (steps >= highest))


def _xnnpack(x: Array, low: Array, high: Array) -> _Rounded:
    """The zero point from the end of the range whose error is smaller, rounded to even."""
    scale = np.where(low == high, _F32(1), _F32(255) / (high - low)).astype(np.float32)
    below, above = low * scale, high * scale
    exact = np.where((_F32(-128) + below) + (_F32(127) + above) > 0, _F32(-128) - below, _F32(127) - above)
    scaled = x * scale
    steps, at_end = _clip_steps(scaled, np.rint(np.clip(exact, -128, 127)), exact, -128, 127)
    return steps, _F32(1) / scale, scaled, at_end


def _symmetric(x: Array, low: Array, high: Array) -> _Rounded:
    """-127 to 127 for the largest magnitude, ties away from zero."""
    largest = np.maximum(-low, high)
    scaled = (x * np.where(largest == 0, _F32(0), _F32(127) / largest)).astype(np.float32)
    steps = np.clip(np.trunc(scaled + np.copysign(_F32(0.5), scaled)), -127, 127)
    return steps, np.where(largest == 0, _F32(1), largest / _F32(127)).astype(np.float32), scaled, np.zeros(x.shape, bool)


def _rows(x: Array, low: Array, high: Array) -> _Rounded:
    """As _xnnpack(), but by a scale in float32 and the zero point in float64, the sum of both rounded with ties away from zero."""
    with np.errstate(all="ignore"):
        scale = np.where(low == high, _F32(1), (high - low) / _F32(255)).astype(np.float32)
        below, above = (end.astype(np.float64) / scale for end in (low, high))
        exact = np.where(128 + np.abs(below) < 127 + np.abs(above), -128 - below, 127 - above)
        point = np.where(low == high, 0, _away(np.clip(exact, -128, 127))).astype(np.float32)
        scaled = x * (_F32(1) / scale)
        steps = np.clip(_away((point + scaled).astype(np.float64)), -128, 127)
    unsure = np.abs(np.abs(exact - np.floor(exact)) - 0.5) <= _NEAR
    return steps - point, scale, scaled, unsure & ((steps <= -128) | (steps >= 127))


def _away(x: Array) -> Array:
    """Rounded to the nearest whole number, ties away from zero; float64."""
    return np.asarray(np.copysign(np.floor(np.abs(x) + 0.5), x))


def _reduced_range(x: Array, low: Array, high: Array) -> _Rounded:
    """0 to 127, by the reciprocal of the scale, ties to even: PyTorch's reduce_range (ATen/native/quantized/cpu/QuantUtils.h)."""
    scale = np.where(low == high, _F32(1), _F32(127) / (high - low)).astype(np.float32)
    exact, scaled = -low * scale, x * scale
    steps, at_end = _clip_steps(scaled, np.rint(np.clip(exact, 0, 127)), exact, 0, 127)
    return steps, _F32(1) / scale, scaled, at_end


def _tensor(x: Array, low: Array, high: Array) -> _Rounded:
    """DynamicQuantizeLinear: 0 to 255, ties to even; all zeros have the scale 1, as in onnxruntime."""
    scale = np.where(low == high, _F32(1), (high - low) / _F32(255)).astype(np.float32)
    exact = -low / scale
    scaled = x / scale
    steps, at_end = _clip_steps(scaled, np.rint(np.clip(exact, 0, 255)), exact, 0, 255)
    return steps, scale, scaled, at_end


#: By the values of the attribute `arithmetic`; see operators/attributes.py.
DYNAMIC_ROUNDINGS: Mapping[str, Callable[[Array, Array, Array], _Rounded]] = {
    "dynamic": _xnnpack,
    "dynamic_images": _xnnpack,
    "dynamic_symmetric": _symmetric,
    "dynamic_rows": _rows,
    "dynamic_tensor": _tensor,
    "dynamic_reduced": _reduced_range,
}
#: Those by the range of the whole tensor, which TFLite has no kernel for.
OF_WHOLE_TENSORS = frozenset(("dynamic_tensor", "dynamic_reduced"))
#: Those of TFLite's recurrent operators, which know rows alone.
OF_ROWS = ("dynamic_symmetric", "dynamic_rows")
