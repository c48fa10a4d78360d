"""Fake quantization, as networks are trained with: float values rounded to a quantization and back, read as a Quantize and a Dequantize.

The scales are those that the file stores, with which the network was trained and evaluated. PyTorch's own convert() computes others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.formats.torch.quantizing import (
    emit_dequantize,
    emit_quantize,
    float32,
    integer_zero_points,
    quantization_along,
    set_limits,
    storage,
    verify_quantization,
)
from qconvert.formats.torch.reading import ReadFunction, Reading, with_unused
from qconvert.formats.torch.values import Ref
from qconvert.graph import Array, Quantization


def _constants(c: Reading, scale: str, zero_point: str) -> tuple[Array, Array]:
    """Scales and zero points; the zero points that are learned are real, and are rounded and clipped when they are used."""
    if not isinstance(c[scale], Ref):
        return np.array([c.number(scale)]), np.array([c.integer(zero_point)])
    scales, zero_points = c.constant(scale), c.constant(zero_point)
    if scales is None or zero_points is None:
        raise c.unsupported_error("scales that are computed at run time", rule="not-constant")
    if c.operator.startswith("aten::_fake_quantize_learnable"):
        zero_points = np.clip(np.rint(zero_points), c.integer("quant_min"), c.integer("quant_max"))
    return scales, zero_points


def _emit_fake_quantize(c: Reading, axis: int | None, scale: str = "scale", zero_point: str = "zero_point") -> str:
    dtype = storage(c, c.integer("quant_min"), c.integer("quant_max"))
    scales, points = _constants(c, scale, zero_point)
    if axis is None:
        quantization = _per_tensor_quantization(c, scales, points, dtype)
    else:
        quantization = quantization_along(c, scales, points, axis, dtype)
    c.session.trained.append(c.hint)
    return emit_dequantize(
        c,
        emit_quantize(
            c,
            c.name(),
            dtype,
            set_limits(c, quantization, dtype),
            exact=scales.reshape(quantization.scale.shape),
            hint="quantized",
        ),
    )


def _per_tensor_quantization(c: Reading, scales: Array, zero_points: Array, dtype: str) -> Quantization:
    if scales.size != 1 or zero_points.size != 1:
        raise c.invalid(
            f"there are {scales.size} scales and {zero_points.size} zero points; per-tensor quantization requires one of each",
            rule="not-per-tensor",
        )
    return verify_quantization(c, Quantization(float32(scales.reshape(1)), integer_zero_points(c, zero_points.reshape(1), (1,))), dtype)


def read_per_tensor(c: Reading) -> str:
    """aten::fake_quantize_per_tensor_affine(x, scale, zero_point, quant_min, quant_max)."""
    return _emit_fake_quantize(c, None)


def read_per_channel(c: Reading, scale: str = "scale", zero_point: str = "zero_point") -> str:
    """aten::fake_quantize_per_channel_affine(x, scale, zero_point, axis, quant_min, quant_max)."""
    return _emit_fake_quantize(c, c.axis_of("axis"), scale, zero_point)


def read_observed(c: Reading) -> str:
    """aten::fused_moving_avg_obs_fake_quant: an observer that is still on updates the scale."""
    if not c.integer("fake_quant_on"):
        return c.name()
    if c.integer("observer_on"):
        c.session.observed.append(c.hint)
    return _emit_fake_quantize(c, c.axis_of("ch_axis") if c["per_row_fake_quant"] else None)


def read_enabled(c: Reading) -> str:
    """aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams, which can be off."""
    return _emit_fake_quantize(c, None) if c.integer("fake_quant_enabled") else c.name()


#: Operators whose further results are for training alone, masks and updated buffers, give None for each.
_LIMITS = "i quant_min, i quant_max"
_NUMBERS, _TENSORS = f"T self, f scale, i zero_point, {_LIMITS}", f"T self, T scale, T zero_point, {_LIMITS}"
_ENABLED = f"T self, T scale, T zero_point, T fake_quant_enabled, {_LIMITS}"
_CHANNELS = f"T self, T scale, T zero_point, i axis, {_LIMITS}"
_OBSERVED = (
    "T self, T observer_on, T fake_quant_on, T running_min, T running_max, T scale, T zero_point, f averaging_const, "
    f"{_LIMITS}, i ch_axis, b per_row_fake_quant=False, b symmetric_quant=False"
)

OPERATORS: Mapping[str, ReadFunction] = {
    f"aten::fake_quantize_per_tensor_affine({_NUMBERS})": read_per_tensor,
    f"aten::fake_quantize_per_tensor_affine({_TENSORS})": read_per_tensor,
    f"aten::fake_quantize_per_tensor_affine_cachemask({_NUMBERS})": with_unused(read_per_tensor, None),
    f"aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams({_ENABLED})": with_unused(read_enabled, None),
    f"aten::_fake_quantize_learnable_per_tensor_affine({_TENSORS}, f grad_factor=1.0)": read_per_tensor,
    f"aten::fake_quantize_per_channel_affine({_CHANNELS})": read_per_channel,
    f"aten::fake_quantize_per_channel_affine_cachemask({_CHANNELS})": with_unused(read_per_channel, None),
    f"aten::_fake_quantize_learnable_per_channel_affine({_CHANNELS}, f grad_factor=1.0)": read_per_channel,
    f"aten::fused_moving_avg_obs_fake_quant({_OBSERVED})": read_observed,
    f"aten::_fused_moving_avg_obs_fq_helper({_OBSERVED})": with_unused(read_observed, None),
    f"aten::_fused_moving_avg_obs_fq_helper_functional({_OBSERVED})": with_unused(read_observed, None, 5),
    f"quantized_decomposed::fake_quant_per_channel(T input, T scales, T zero_points, i axis, {_LIMITS})": lambda c: read_per_channel(
        c, "scales", "zero_points"
    ),
}
