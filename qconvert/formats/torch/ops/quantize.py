"""Between float values and quantizations: aten's operators on quantized tensors, and quantized_decomposed's on plain ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qconvert.formats.torch.dtypes import QUANTIZED
from qconvert.formats.torch.quantizing import (
    decomposed_dequantize,
    decomposed_quantize,
    emit_dequantize,
    emit_quantize,
    float32,
    integer_zero_points,
    quantization_along,
    set_limits,
    verify_quantization,
)
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.rounding import FUSED, ROUNDED, SHIFTED
from qconvert.formats.torch.values import Ref
from qconvert.graph import Array, Quantization

__all__ = ["OPERATORS"]


def read_quantize(c: Call) -> Ref:
    """aten::quantize_per_tensor(x, scale, zero_point, dtype): a quantized tensor."""
    dtype = c.torch_type("dtype")
    if dtype is None or dtype not in QUANTIZED:
        raise c.invalid(f"the type {dtype} is not quantized", rule="wrong-type")
    stored = QUANTIZED[dtype]
    return emit_quantize(c, c.name("self"), stored, c.quantization(dtype=stored), FUSED)


def read_quantize_along(c: Call) -> Ref:
    """aten::quantize_per_channel(x, scales, zero_points, axis, dtype): a quantized tensor."""
    dtype, scales = c.torch_type("dtype"), _exact_scales(c)
    if dtype is None or dtype not in QUANTIZED or scales is None:
        raise c.invalid(f"the type {dtype} is not quantized", rule="wrong-type")
    stored, axis = QUANTIZED[dtype], c.axis(c.integer("axis"), c.rank("self"))
    return emit_quantize(c, c.name("self"), stored, quantization_along(c, scales, c.constant("zero_points"), axis, stored), FUSED)


def read_dequantize(c: Call) -> Ref:
    """aten::dequantize(x): what is not quantized stays as it is."""
    if not c.operand("self").is_quantized:
        return Ref(c.name("self"))
    return c.emit("Dequantize", [c.name("self")], dtype="float32", quantization=None)


def read_int_repr(c: Call) -> Ref:
    """aten::int_repr(x): the stored integers as plain numbers."""
    if not c.operand("self").is_quantized:
        raise c.invalid("the data are not quantized", rule="not-quantized")
    return c.emit("Reinterpret", [c.name("self")], quantization=None)


def _skip_int_repr(c: Call) -> Ref:
    """The integers in `self`; for int_repr of a quantized tensor, the quantized tensor itself."""
    name = c.name("self")
    maker = c.producer(name)
    if maker is not None and maker.kind == "Reinterpret" and not c.lookup(name).is_quantized:
        return Ref(maker.inputs[0])
    return Ref(name)


def read_make(c: Call) -> Ref:
    """aten::_make_per_tensor_quantized_tensor(x, scale, zero_point): integers under a quantization."""
    tensor = c.lookup(_skip_int_repr(c).name)
    return Ref(c.label_tensor(tensor, c.quantization(dtype=tensor.dtype)))


def read_make_along(c: Call) -> Ref:
    """aten::_make_per_channel_quantized_tensor(x, scales, zero_points, axis)."""
    tensor, scales = c.lookup(_skip_int_repr(c).name), c.constant("scale")
    if scales is None or c.constant("zero_point") is None:
        raise c.unsupported_error("scales along an axis that are computed at run time", rule="not-constant")
    return Ref(
        c.label_tensor(
            tensor, quantization_along(c, scales, c.constant("zero_point"), c.axis(c.integer("axis"), c.rank("self")), tensor.dtype)
        )
    )


def _exact_scales(c: Call) -> Array | None:
    """The scales along an axis as the file has them, float32 or float64; None if they are computed at run time."""
    scales = c.constant("scales")
    if scales is None or (c["zero_points"] is not None and c.constant("zero_points") is None):
        raise c.unsupported_error("scales along an axis that are computed at run time", rule="not-constant")
    return scales


def _stated_quantization(c: Call, dtype: str) -> tuple[Quantization, Array | None]:
    """The quantization of quantized_decomposed's operators, per tensor or along an axis, and its scales as the file has them."""
    if "axis" not in c:
        return c.quantization(dtype=dtype), np.array([c.number("scale")])
    scales = _exact_scales(c)
    assert scales is not None
    points = c.constant("zero_points") if c["zero_points"] is not None else None
    return quantization_along(c, scales, points, c.axis(c.integer("axis"), c.rank("input")), dtype), scales


def _is_computed(c: Call) -> bool:
    """Whether a scale for the whole tensor is known only at run time."""
    return "scale" in c and isinstance(c["scale"], Ref) and c.constant("scale") is None


def read_decomposed_quantize(c: Call) -> Ref:
    """quantized_decomposed::quantize_per_tensor and quantize_per_channel."""
    dtype = c.dtype("dtype") or "int8"
    low, high = c.integer("quant_min"), c.integer("quant_max")
    if _is_computed(c):
        return decomposed_quantize(c, c.name("input"), c.name("scale"), c.name("zero_point"), (low, high), dtype)
    quantization, exact = _stated_quantization(c, dtype)
    return emit_quantize(c, c.name("input"), dtype, set_limits(c, quantization, dtype, low, high), ROUNDED, exact)


def read_decomposed_dequantize(c: Call) -> Ref:
    """quantized_decomposed::dequantize_per_tensor and dequantize_per_channel: of integers, which this gives their quantization.

    The limits are those of the quantize before it. What is computed at run time is not clamped to them again.
    """
    tensor = c.operand("input")
    if _is_computed(c):
        return decomposed_dequantize(c, tensor.name, c.name("scale"), c.name("zero_point"))
    quantization, _ = _stated_quantization(c, tensor.dtype)
    if c.known(tensor.name) is not None:
        quantization = set_limits(c, quantization, tensor.dtype, c.integer("quant_min"), c.integer("quant_max"))
    return emit_dequantize(c, Ref(c.label_tensor(tensor, quantization)), c.dtype("out_dtype") or "float32")


def _group_quantization(c: Call, dtype: str) -> tuple[Quantization, Array | None]:
    """The quantization of scales for groups along the last axis."""
    scales = _exact_scales(c)
    shape, size = c.static_shape("input"), c.integer("group_size")
    points = c.constant("zero_points") if c["zero_points"] is not None else None
    if scales is None or len(shape) < 2 or size < 1 or 0 in shape:
        raise c.invalid(f"groups of {size} do not divide the last axis of shape {shape}", rule="blocks-do-not-fit")
    size = min(size, shape[-1])
    wanted = (*shape[:-1], -(-shape[-1] // size))
    if scales.size != math.prod(wanted) or (points is not None and points.size not in (0, scales.size)):
        raise c.invalid(f"{scales.size} scales do not fit groups of {size} along the last axis of shape {shape}", rule="counts-differ")
    scales = scales.reshape(wanted)
    zeros = integer_zero_points(c, points, wanted).reshape(wanted)
    return verify_quantization(c, Quantization(float32(scales), zeros, len(shape) - 1, size), dtype), scales


def read_group_quantize(c: Call) -> Ref:
    """quantized_decomposed::quantize_per_channel_group: a scale for each `group_size` elements of a row."""
    dtype = c.dtype("dtype") or "int8"
    quantization, exact = _group_quantization(c, dtype)
    quantization = set_limits(c, quantization, dtype, c.integer("quant_min"), c.integer("quant_max"))
    if c.constant("input") is None:
        raise c.unsupported_error("groups of what is computed at run time", rule="not-constant")
    return emit_quantize(c, c.name("input"), dtype, quantization, SHIFTED, exact)


def read_group_dequantize(c: Call) -> Ref:
    """quantized_decomposed::dequantize_per_channel_group."""
    tensor = c.operand("input")
    quantization, _ = _group_quantization(c, tensor.dtype)
    quantization = set_limits(c, quantization, tensor.dtype, c.integer("quant_min"), c.integer("quant_max"))
    return emit_dequantize(c, Ref(c.label_tensor(tensor, quantization)), c.dtype("output_dtype") or "float32")


def read_token_quantize(c: Call) -> Ref:
    """quantized_decomposed::quantize_per_token: a scale for each row, computed at run time."""
    limits = c.integer("quant_min"), c.integer("quant_max")
    return decomposed_quantize(c, c.name("input"), c.name("scales"), c.name("zero_points"), limits, c.dtype("dtype") or "int8", SHIFTED)


def read_token_dequantize(c: Call) -> Ref:
    """quantized_decomposed::dequantize_per_token."""
    return decomposed_dequantize(c, c.name("input"), c.name("scales"), c.name("zero_points"))


_LIMITS = "i quant_min, i quant_max, i dtype"
_PER_CHANNEL = f"T input, T scales, T? zero_points, i axis, {_LIMITS}"
_DECOMPOSED = "quantized_decomposed::"

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::quantize_per_tensor": [
        Operator("T self, f scale, i zero_point, i dtype", read_quantize),
        Operator("T self, T scale, T zero_point, i dtype", read_quantize),
    ],
    "aten::quantize_per_channel": Operator("T self, T scales, T zero_points, i axis, i dtype", read_quantize_along),
    "aten::dequantize": Operator("T self", read_dequantize),
    "aten::int_repr": Operator("T self", read_int_repr),
    "aten::_make_per_tensor_quantized_tensor": Operator("T self, f scale, i zero_point", read_make),
    "aten::_make_per_channel_quantized_tensor": Operator("T self, T scale, T zero_point, i axis", read_make_along),
    f"{_DECOMPOSED}quantize_per_tensor": [
        Operator(f"T input, f scale, i zero_point, {_LIMITS}", read_decomposed_quantize),
        Operator(f"T input, T scale, T zero_point, {_LIMITS}", read_decomposed_quantize),
        Operator("T input, T scale, T zero_point, T quant_min, T quant_max, i dtype", read_decomposed_quantize),
    ],
    f"{_DECOMPOSED}dequantize_per_tensor": [
        Operator(f"T input, f scale, i zero_point, {_LIMITS}, i? out_dtype=None", read_decomposed_dequantize),
        Operator(f"T input, T scale, T zero_point, {_LIMITS}, i? out_dtype=None", read_decomposed_dequantize),
        Operator("T input, T scale, T zero_point, T quant_min, T quant_max, i dtype, i? out_dtype=None", read_decomposed_dequantize),
    ],
    f"{_DECOMPOSED}quantize_per_channel": Operator(_PER_CHANNEL, read_decomposed_quantize),
    f"{_DECOMPOSED}dequantize_per_channel": Operator(f"{_PER_CHANNEL}, i? out_dtype=None", read_decomposed_dequantize),
    f"{_DECOMPOSED}quantize_per_channel_group": Operator(
        f"T input, T scales, T zero_points, {_LIMITS}, i group_size=128", read_group_quantize
    ),
    f"{_DECOMPOSED}dequantize_per_channel_group": Operator(
        f"T input, T scales, T? zero_points, {_LIMITS}, i group_size=128, i? output_dtype=None", read_group_dequantize
    ),
    f"{_DECOMPOSED}quantize_per_token": Operator(f"T input, T scales, T zero_points, {_LIMITS}", read_token_quantize),
    f"{_DECOMPOSED}dequantize_per_token": Operator(
        f"T input, T scales, T zero_points, {_LIMITS}, i? output_dtype=None", read_token_dequantize
    ),
}
