"""Between float values and quantizations: aten's operators on quantized tensors, quantized_decomposed's on plain ones, scales computed at
run time, and the fake quantization that networks are trained with, which is read as a Quantize and a Dequantize.

Scales of the data are decomposed, part by part, as PyTorch computes them in float32. Those of fake quantization are what the file stores,
with which the network was trained and evaluated. PyTorch's own convert() computes others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qconvert.formats.torch.operands import Part, skip_reinterpret
from qconvert.formats.torch.quantizing import (
    FUSED,
    ROUNDED,
    SHIFTED,
    cast_to_float32,
    decomposed_dequantize,
    decomposed_quantize,
    emit_dequantize,
    emit_quantize,
    float32,
    integer_zero_points,
    quantization_along,
    set_limits,
    stated_limits,
    storage,
    verify_quantization,
)
from qconvert.formats.torch.reading import ReadFunction, Reading, with_unused
from qconvert.formats.torch.stored_values import QUANTIZED
from qconvert.formats.torch.values import Ref
from qconvert.graph import Array, Quantization
from qconvert.operators.values import Value, apply, clip, maximum, minimum, where

_SMALLEST = float(np.finfo(np.float32).smallest_normal)


def _find_ends(c: Reading, axes: Sequence[int], keepdims: bool, *, with_zero: bool = True) -> list[Value]:
    """Return the smallest and the largest element along axes, by default with 0 among the elements."""
    data = cast_to_float32(c, c.name())
    found: list[Value] = []
    for kind, other in (("ReduceMin", "Min"), ("ReduceMax", "Max")):
        hint = other.lower()
        end = Part(c, c.emit(kind, [data, c.list64(axes, "axes")], hint=hint, keepdims=int(keepdims)))
        found.append(apply(other, end, 0, hint=f"{hint}_zero") if with_zero else end)
    return found


def _at_least(value: Value, lowest: float) -> Value:
    return maximum(value, lowest, hint="scale")


def _zero_point(low_end: Value, scale: Value, limits: tuple[int, int]) -> Value:
    """low - rint(min / scale), within the limits."""
    return clip(limits[0] - apply("Round", low_end / scale), *limits, hint="zero_point")


def read_choose(c: Reading) -> tuple[Value, Value]:
    """quantized_decomposed::choose_qparams(x, quant_min, quant_max, eps, dtype): one scale and zero point, each of shape (1,)."""
    limits = c.integer("quant_min"), c.integer("quant_max")
    low, high = _find_ends(c, range(c.rank()), False)
    scale = _at_least((high - low) / (limits[1] - limits[0]), c.number("eps"))
    point = _zero_point(low, scale, limits)
    return _unsqueeze_scalar(scale), _unsqueeze_scalar(point)


def read_choose_symmetric(c: Reading) -> tuple[Value, str]:
    """quantized_decomposed::choose_qparams_symmetric: the zero point is 0, or 128 of uint8."""
    low, high = _find_ends(c, range(c.rank()), False)
    scale = _at_least(maximum(-low, high) / ((c.integer("quant_max") - c.integer("quant_min")) / 2), c.number("eps"))
    return _unsqueeze_scalar(scale), c.const(np.array([128 if c.dtype("dtype") == "uint8" else 0], np.float32), "zero_point")


def _unsqueeze_scalar(value: Part) -> str:
    return value.c.emit("Unsqueeze", [value.name, value.c.list64([0], "axes")], hint="listed")


def read_choose_rows(c: Reading) -> tuple[Value, Value]:
    """quantized_decomposed::choose_qparams_per_token: the largest of each row, symmetric."""
    low, high = _find_ends(c, [c.rank() - 1], True, with_zero=False)
    scale = _at_least(maximum(-low, high), 1e-5) / c.range_of(c.dtype("dtype") or "int8")[1]
    return scale, apply("Mul", scale, 0, hint="zero_point")


def read_choose_rows_affine(c: Reading) -> tuple[Value, Value]:
    """quantized_decomposed::choose_qparams_per_token_asymmetric: the zero point with the smaller error at the two range limits; int8."""
    limits = (-128, 127)
    low, high = _find_ends(c, [c.rank() - 1], True)
    scale = _at_least((high - low) / 255, float(np.finfo(np.float32).eps))
    first, last = low / scale, high / scale
    is_nearer = apply("Greater", (limits[0] + first) + (limits[1] + last), 0, hint="nearer")
    point = clip(where(is_nearer, limits[0] - first, limits[1] - last), *limits)
    return scale, apply("Round", point, hint="zero_point")


def read_choose_affine(c: Reading) -> tuple[Value, Value]:
    """torchao::choose_qparams_affine(x, mapping_type, block_size, target_dtype, quant_min, quant_max, eps, …)."""
    shape, blocks = c.operand().shape, c.integers("block_size")
    if shape is None or len(shape) != len(blocks) or any(block not in (1, size) for size, block in zip(shape, blocks, strict=True)):
        raise c.unsupported_error(f"blocks of shape {blocks} in a tensor of shape {shape}")
    limits = stated_limits(c, c.dtype("target_dtype") or "int8")
    axes = [axis for axis, block in enumerate(blocks) if block != 1]
    if axes:
        low, high = _find_ends(c, axes, bool(c["keepdim"]))
    else:
        data, zero = Part(c, c.name()), Part(c, c.const(np.float32(0), "number"))
        low, high = minimum(data, zero), maximum(data, zero)
    eps = _SMALLEST if c["eps"] is None else c.number("eps")
    mapping = c["mapping_type"]
    if mapping == "ASYMMETRIC":
        scale = _at_least((high - low) / (limits[1] - limits[0]), eps)
        return scale, _zero_point(low, scale, limits)
    if mapping == "SYMMETRIC":
        scale = maximum(-low, high) / ((limits[1] - limits[0]) / 2)
    elif mapping == "SYMMETRIC_NO_CLIPPING_ERR":
        scale = maximum(low / limits[0], high / limits[1])
    else:
        raise c.unsupported_error(f"the mapping {mapping}")
    return _at_least(scale, eps), c.const(np.float32((limits[0] + limits[1] + 1) // 2), "zero_point")


def read_quantize(c: Reading) -> str:
    """aten::quantize_per_tensor(x, scale, zero_point, dtype) and quantize_per_channel: a quantized tensor."""
    dtype = c.torch_type("dtype")
    if dtype is None or dtype not in QUANTIZED:
        raise c.invalid(f"the type {dtype} is not quantized", rule="wrong-type")
    return emit_quantize(c, c.name(), QUANTIZED[dtype], _stated_quantization(c, QUANTIZED[dtype])[0], FUSED)


def read_dequantize(c: Reading) -> str:
    """aten::dequantize(x): what is not quantized stays as it is."""
    if not c.operand().is_quantized:
        return c.name()
    return emit_dequantize(c, c.name())


def read_int_repr(c: Reading) -> str:
    """aten::int_repr(x): the stored integers as plain numbers."""
    if not c.operand().is_quantized:
        raise c.invalid("the data are not quantized", rule="not-quantized")
    return c.emit("Reinterpret", [c.name()], quantization=None)


def read_make(c: Reading) -> str:
    """aten::_make_per_tensor_quantized_tensor(x, scale, zero_point) and _make_per_channel_…: integers under a quantization."""
    tensor = c.lookup(skip_reinterpret(c.draft, c.name()))
    return c.label_tensor(tensor, _stated_quantization(c, tensor.dtype)[0])


def _scale_names(c: Reading) -> tuple[str, str]:
    """What the call names its scales and zero points."""
    return ("scales", "zero_points") if "scales" in c else ("scale", "zero_point")


def exact_scales(c: Reading) -> tuple[Array, Array | None]:
    """Scales along an axis, or in blocks, as the file has them, float32 or float64, and their zero points, if there are any.

    Raises:
        UnsupportedError: they are computed at run time.
    """
    scales, zero_points = _scale_names(c)
    found, points = c.constant(scales), None if c[zero_points] is None else c.constant(zero_points)
    if found is None or (c[zero_points] is not None and points is None):
        raise c.unsupported_error("scales along an axis that are computed at run time", rule="not-constant")
    return found, points


def _stated_quantization(c: Reading, dtype: str) -> tuple[Quantization, Array]:
    """The quantization that a call states, per tensor or along an axis, and its scales as the file has them."""
    if "axis" not in c:
        return c.quantization(dtype=dtype), np.array([c.number("scale")])
    scales, points = exact_scales(c)
    return quantization_along(c, scales, points, c.axis_of("axis"), dtype), scales


def _is_computed(c: Reading) -> bool:
    """Whether a scale for the whole tensor is known only at run time."""
    return "scale" in c and isinstance(c["scale"], Ref) and c.constant("scale") is None


def read_decomposed_quantize(c: Reading) -> Value:
    """quantized_decomposed::quantize_per_tensor and quantize_per_channel."""
    dtype = c.dtype("dtype") or "int8"
    low, high = c.integer("quant_min"), c.integer("quant_max")
    if _is_computed(c):
        return decomposed_quantize(c, c.name(), c.name("scale"), c.name("zero_point"), (low, high), dtype)
    quantization, exact = _stated_quantization(c, dtype)
    return emit_quantize(c, c.name(), dtype, set_limits(c, quantization, dtype), ROUNDED, exact)


def read_decomposed_dequantize(c: Reading) -> Value:
    """quantized_decomposed::dequantize_per_tensor and dequantize_per_channel: of integers, which this gives their quantization.

    The limits are those of the quantize before it. What is computed at run time is not clamped to them again.
    """
    tensor = c.operand()
    if _is_computed(c):
        return _in_stated_type(c, decomposed_dequantize(c, tensor.name, c.name("scale"), c.name("zero_point")))
    if "scales" in c and (points := exact_scales(c)[1]) is not None and np.isfinite(points).all() and (points % 1).any():
        scales, axis = exact_scales(c)[0], c.axis_of("axis")  # of embeddings, by torchao
        if scales.shape != points.shape or scales.shape != (c.size(axis),):
            raise c.invalid(f"{scales.size} scales and {points.size} zero points along axis {axis}", rule="counts-differ")
        shape = [-1 if at == axis else 1 for at in range(c.rank())]
        names = [c.const(float32(values).reshape(shape), hint) for values, hint in ((scales, "scale"), (points, "point"))]
        return _in_stated_type(c, decomposed_dequantize(c, tensor.name, *names))
    quantization, _ = _stated_quantization(c, tensor.dtype)
    if c.known(tensor.name) is not None:
        quantization = set_limits(c, quantization, tensor.dtype)
    return emit_dequantize(c, c.label_tensor(tensor, quantization), c.dtype("out_dtype") or "float32")


def _in_stated_type(c: Reading, real: Value) -> Value:
    dtype = c.dtype("out_dtype") or "float32"
    return real if dtype == "float32" else apply("Cast", real, to=dtype, hint="")


def _group_quantization(c: Reading, dtype: str) -> tuple[Quantization, Array]:
    """The quantization of scales for groups along the last axis."""
    scales, points = exact_scales(c)
    shape, size = c.static_shape(), c.integer("group_size")
    if len(shape) < 2 or size < 1 or 0 in shape:
        raise c.invalid(f"groups of {size} do not divide the last axis of shape {shape}", rule="blocks-do-not-fit")
    size = min(size, shape[-1])
    wanted = (*shape[:-1], -(-shape[-1] // size))
    if scales.size != math.prod(wanted) or (points is not None and points.size not in (0, scales.size)):
        raise c.invalid(f"{scales.size} scales do not fit groups of {size} along the last axis of shape {shape}", rule="counts-differ")
    scales = scales.reshape(wanted)
    zeros = integer_zero_points(c, points, wanted).reshape(wanted)
    return verify_quantization(c, Quantization(float32(scales), zeros, len(shape) - 1, size), dtype), scales


def read_group_quantize(c: Reading) -> str:
    """quantized_decomposed::quantize_per_channel_group: a scale for each `group_size` elements of a row."""
    dtype = c.dtype("dtype") or "int8"
    quantization, exact = _group_quantization(c, dtype)
    quantization = set_limits(c, quantization, dtype)
    if c.constant("input") is None:
        raise c.unsupported_error("groups of what is computed at run time", rule="not-constant")
    return emit_quantize(c, c.name(), dtype, quantization, SHIFTED, exact)


def read_group_dequantize(c: Reading) -> str:
    """quantized_decomposed::dequantize_per_channel_group."""
    tensor = c.operand()
    quantization, _ = _group_quantization(c, tensor.dtype)
    quantization = set_limits(c, quantization, tensor.dtype)
    return emit_dequantize(c, c.label_tensor(tensor, quantization), c.dtype("output_dtype") or "float32")


def read_token_quantize(c: Reading) -> Value:
    """quantized_decomposed::quantize_per_token: a scale for each row, computed at run time."""
    limits = c.integer("quant_min"), c.integer("quant_max")
    return decomposed_quantize(c, c.name(), c.name("scales"), c.name("zero_points"), limits, c.dtype("dtype") or "int8", SHIFTED)


def read_token_dequantize(c: Reading) -> Value:
    """quantized_decomposed::dequantize_per_token."""
    return decomposed_dequantize(c, c.name(), c.name("scales"), c.name("zero_points"))


def _emit_fake_quantize(c: Reading, axis: int | None) -> str:
    """Float values rounded to a quantization and back. Zero points that are learned are real; they are rounded and clipped here."""
    dtype, (scale, zero_point) = storage(c, c.integer("quant_min"), c.integer("quant_max")), _scale_names(c)
    if isinstance(c[scale], Ref):
        scales, points = c.constant(scale), c.constant(zero_point)
    else:
        scales, points = np.array([c.number(scale)]), np.array([c.integer(zero_point)])
    if scales is None or points is None:
        raise c.unsupported_error("scales that are computed at run time", rule="not-constant")
    if c.operator.startswith("aten::_fake_quantize_learnable"):
        points = np.clip(np.rint(points), c.integer("quant_min"), c.integer("quant_max"))
    if axis is not None:
        quantization = quantization_along(c, scales, points, axis, dtype)
    elif scales.size == points.size == 1:
        found = Quantization(float32(scales.reshape(1)), integer_zero_points(c, points.reshape(1), (1,)))
        quantization = verify_quantization(c, found, dtype)
    else:
        raise c.invalid(
            f"there are {scales.size} scales and {points.size} zero points; per-tensor quantization requires one of each",
            rule="not-per-tensor",
        )
    c.session.trained.append(c.hint)
    exact, limited = scales.reshape(quantization.scale.shape), set_limits(c, quantization, dtype)
    return emit_dequantize(c, emit_quantize(c, c.name(), dtype, limited, exact=exact, hint="quantized"))


def read_fake_quantize(c: Reading) -> str:
    """aten::fake_quantize_per_tensor_affine, fake_quantize_per_channel_affine and their kin, of which one can be off."""
    if "fake_quant_enabled" in c and not c.integer("fake_quant_enabled"):
        return c.name()
    return _emit_fake_quantize(c, c.axis_of("axis") if "axis" in c else None)


def read_observed(c: Reading) -> str:
    """aten::fused_moving_avg_obs_fake_quant: an observer that is still on updates the scale."""
    if not c.integer("fake_quant_on"):
        return c.name()
    if c.integer("observer_on"):
        c.session.observed.append(c.hint)
    return _emit_fake_quantize(c, c.axis_of("ch_axis") if c["per_row_fake_quant"] else None)


#: Operators whose further results are for training alone, masks and updated buffers, give None for each.
_FAKE_LIMITS = "i quant_min, i quant_max"
_TENSOR = f"T self, x scale, x zero_point, {_FAKE_LIMITS}"
_ENABLED = f"T self, T scale, T zero_point, T fake_quant_enabled, {_FAKE_LIMITS}"
_CHANNELS = f"T self, T scale, T zero_point, i axis, {_FAKE_LIMITS}"
_OBSERVED = (
    "T self, T observer_on, T fake_quant_on, T running_min, T running_max, T scale, T zero_point, f averaging_const, "
    f"{_FAKE_LIMITS}, i ch_axis, b per_row_fake_quant=False, b symmetric_quant=False"
)

_LIMITS, _RANGE_LIMITS = f"{_FAKE_LIMITS}, i dtype", f"{_FAKE_LIMITS}, f eps, i dtype"
_PER_CHANNEL = f"T input, T scales, T? zero_points, i axis, {_LIMITS}"
_DECOMPOSED = "quantized_decomposed::"
_PER_TENSOR = "T input, x scale, x zero_point, x quant_min, x quant_max, i dtype"
_GROUPS = f"{_LIMITS}, i group_size=128"
_CHOSEN = (
    "T input, s mapping_type, l block_size, i target_dtype, f? quant_min=None, f? quant_max=None, f? eps=None, i? scale_dtype=None, "
    "i? zero_point_dtype=None, b keepdim=False"
)

OPERATORS: Mapping[str, ReadFunction] = {
    f"aten::fake_quantize_per_tensor_affine({_TENSOR})": read_fake_quantize,
    f"aten::fake_quantize_per_tensor_affine_cachemask({_TENSOR})": with_unused(read_fake_quantize, None),
    f"aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams({_ENABLED})": with_unused(read_fake_quantize, None),
    f"aten::_fake_quantize_learnable_per_tensor_affine({_TENSOR}, f grad_factor=1.0)": read_fake_quantize,
    f"aten::fake_quantize_per_channel_affine({_CHANNELS})": read_fake_quantize,
    f"aten::fake_quantize_per_channel_affine_cachemask({_CHANNELS})": with_unused(read_fake_quantize, None),
    f"aten::_fake_quantize_learnable_per_channel_affine({_CHANNELS}, f grad_factor=1.0)": read_fake_quantize,
    f"aten::fused_moving_avg_obs_fake_quant({_OBSERVED})": read_observed,
    f"aten::_fused_moving_avg_obs_fq_helper({_OBSERVED})": with_unused(read_observed, None),
    f"aten::_fused_moving_avg_obs_fq_helper_functional({_OBSERVED})": with_unused(read_observed, None, 5),
    f"quantized_decomposed::fake_quant_per_channel(T input, T scales, T zero_points, i axis, {_FAKE_LIMITS})": read_fake_quantize,
    f"{_DECOMPOSED}choose_qparams(T input, {_RANGE_LIMITS})": read_choose,
    f"{_DECOMPOSED}choose_qparams_symmetric(T input, {_RANGE_LIMITS})": read_choose_symmetric,
    f"{_DECOMPOSED}choose_qparams_per_token(T input, i dtype)": read_choose_rows,
    f"{_DECOMPOSED}choose_qparams_per_token_asymmetric(T input, i dtype)": read_choose_rows_affine,
    f"{_DECOMPOSED}_choose_qparams_per_token_asymmetric_impl(T input, i dtype)": read_choose_rows_affine,
    f"torchao::choose_qparams_affine({_CHOSEN})": read_choose_affine,
    "aten::quantize_per_tensor(T self, x scale, x zero_point, i dtype)": read_quantize,
    "aten::quantize_per_channel(T self, T scales, T zero_points, i axis, i dtype)": read_quantize,
    "aten::dequantize(T self)": read_dequantize,
    "aten::int_repr(T self)": read_int_repr,
    "aten::_make_per_tensor_quantized_tensor(T self, f scale, i zero_point)": read_make,
    "aten::_make_per_channel_quantized_tensor(T self, T scale, T zero_point, i axis)": read_make,
    f"{_DECOMPOSED}quantize_per_tensor({_PER_TENSOR})": read_decomposed_quantize,
    f"{_DECOMPOSED}dequantize_per_tensor({_PER_TENSOR}, i? out_dtype=None)": read_decomposed_dequantize,
    f"{_DECOMPOSED}quantize_per_channel({_PER_CHANNEL})": read_decomposed_quantize,
    f"{_DECOMPOSED}dequantize_per_channel({_PER_CHANNEL}, i? out_dtype=None)": read_decomposed_dequantize,
    f"{_DECOMPOSED}quantize_per_channel_group(T input, T scales, T zero_points, {_GROUPS})": read_group_quantize,
    f"{_DECOMPOSED}dequantize_per_channel_group(T input, T scales, T? zero_points, {_GROUPS}, i? output_dtype=None)": read_group_dequantize,
    f"{_DECOMPOSED}quantize_per_token(T input, T scales, T zero_points, {_LIMITS})": read_token_quantize,
    f"{_DECOMPOSED}dequantize_per_token(T input, T scales, T zero_points, {_LIMITS}, i? output_dtype=None)": read_token_dequantize,
}
