"""Float values with quantizations: constants become integers at once, by PyTorch's rounding; scales that are computed at run time are
decomposed.

PyTorch has three roundings, each found exactly, which differ in ties and last bits:

    ROUNDED    clamp(rint(x * inv) + zero_point)    fake_quantize_*, quantized_decomposed, torchao; inv = float32(1 / scale)
    FUSED      clamp(rint(fma(x, inv, zero_point))) torch.quantize_per_tensor
    SHIFTED    clamp(rint(x * inv + zero_point))    quantized_decomposed's groups and tokens

ONNX's rule, rint(x / scale) + zero_point, is that of the canonical graph: constants are rounded here, by PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.arithmetic.kernels import dequantize_float32
from qconvert.arithmetic.rounding import scale_and_zero_point
from qconvert.formats.reading.quantizations import label_key
from qconvert.formats.torch.operands import Part
from qconvert.formats.torch.reading import Reading
from qconvert.graph import Array, Quantization, integer_range, numpy_dtype
from qconvert.operators.values import Value, apply, clip

ROUNDED, FUSED, SHIFTED = "rounded", "fused", "shifted"


def integers(data: Array, quantization: Quantization, dtype: str, order: str, exact: Array | None = None) -> Array:
    """The stored integers of constant float values.

    Args:
        data: float32.
        quantization: that they are put on, with its limits.
        dtype: the storage type.
        order: ROUNDED, FUSED or SHIFTED.
        exact: the scales as the file has them, where these are float64; of the shape of quantization.scale.
    """
    scale = quantization.scale.astype(np.float64) if exact is None else exact.astype(np.float64)
    with np.errstate(all="ignore"):
        reciprocal, zero_point = scale_and_zero_point(replace(quantization, scale=(1 / scale).astype(np.float32)), data.shape)
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


def storage(c: Reading, low: int, high: int) -> str:
    """The smallest type that holds the integers from `low` to `high`: int8 or uint8 also for those of fewer bits."""
    for dtype in ("uint8", "int8", "uint16", "int16", "int32"):
        lowest, highest = integer_range(dtype)
        if lowest <= low <= high <= highest:
            return dtype
    raise c.unsupported_error(f"limits {low} and {high}, which no type holds,", rule="limits-outside-type")


def stated_limits(c: Reading, dtype: str) -> tuple[int, int]:
    """The limits that a call states as quant_min and quant_max, or those of the type."""
    low, high = c.range_of(dtype)
    return (low if c["quant_min"] is None else c.integer("quant_min")), (high if c["quant_max"] is None else c.integer("quant_max"))


def set_limits(c: Reading, quantization: Quantization, dtype: str) -> Quantization:
    """A quantization with the limits that the call states, where these are not the type's."""
    low, high = stated_limits(c, dtype)
    lowest, highest = c.range_of(dtype)
    if not lowest <= low <= high <= highest:
        raise c.invalid(f"the limits {low} and {high} are outside of {dtype}", rule="limits-outside-type")
    return quantization.with_limits(dtype, low, high)


def quantization_along(c: Reading, scales: Array, zero_points: Array | None, axis: int, dtype: str) -> Quantization:
    """The quantization of scales along an axis, one for each index of it."""
    if scales.ndim != 1 or (zero_points is not None and zero_points.shape != scales.shape):
        raise c.invalid(
            f"the scales have shape {scales.shape}, the zero points {None if zero_points is None else zero_points.shape}",
            rule="counts-differ",
        )
    return verify_quantization(c, Quantization(float32(scales), integer_zero_points(c, zero_points, scales.shape), axis), dtype)


def verify_quantization(c: Reading, quantization: Quantization, dtype: str) -> Quantization:
    """Return the quantization. Its scales have to be positive numbers, its zero points within the type.

    Raises:
        InvalidModelError: they are not.
    """
    low, high = c.range_of(dtype)
    if not (np.isfinite(quantization.scale).all() and (quantization.scale > 0).all()):
        raise c.invalid("a scale is no positive number", rule="scale-not-positive")
    if ((quantization.zero_point < low) | (quantization.zero_point > high)).any():
        raise c.invalid(f"a zero point is outside of {dtype}", rule="zero-point-outside-type")
    return quantization


def quantization_of_blocks(scales: Array, zero_points: Array, blocks: Sequence[int]) -> Quantization:
    """The quantization of scales and zero points with as many axes as the tensor, one for each block of its elements.

    One axis with blocks of several elements becomes the quantization's axis; along the others, scales are repeated for each element.
    """
    along = [axis for axis, count in enumerate(scales.shape) if count > 1]
    if not along:
        return Quantization(scales.reshape(1), zero_points.reshape(1))
    if len(along) == 1 and blocks[along[0]] == 1:
        return Quantization(scales.reshape(-1), zero_points.reshape(-1), along[0])
    axis = max(range(len(blocks)), key=lambda place: (scales.shape[place] > 1 and blocks[place] > 1, blocks[place], place))
    for other, block in enumerate(blocks):
        if other != axis and block > 1:
            scales, zero_points = (np.repeat(values, block, axis=other) for values in (scales, zero_points))
    return Quantization(scales, zero_points, axis, blocks[axis])


def float32(scales: Array) -> Array:
    """Scales in the type in which quantizations have them."""
    with np.errstate(over="ignore"):
        return np.asarray(scales.astype(np.float32))


def integer_zero_points(c: Reading, zero_points: Array | None, shape: tuple[int, ...]) -> Array:
    """Zero points as int64; 0 where there are none."""
    if zero_points is None or zero_points.size == 0:
        return np.zeros(shape, np.int64)
    rounded = np.nan_to_num(zero_points.astype(np.float64))
    if (np.rint(rounded) != rounded).any():
        raise c.unsupported_error("zero points that are not integers", rule="zero-point-not-integer")
    return np.clip(rounded, -(2**40), 2**40).astype(np.int64)


def emit_quantize(
    c: Reading, name: str, dtype: str, quantization: Quantization, order: str = ROUNDED, exact: Array | None = None, hint: str = ""
) -> str:
    """The tensor `name` of float values as integers: a constant, or a Quantize, after a Clip if the quantization has limits.

    Args:
        c: the call.
        name: of the float values.
        dtype: the storage type.
        quantization: with its limits.
        order: ROUNDED, FUSED or SHIFTED, the rounding of constants.
        exact: the scales as the file has them.
        hint: suffix of the tensor's name; "" for the result of the call.
    """
    data = c.known(name)
    if data is not None and data.dtype.kind == "f":
        _require_fit(c, data.shape, quantization)
        stored = integers(data.astype(np.float32), quantization, dtype, order, exact)
        return c.draft.variant(name, f"integers_{label_key(quantization)}", stored, quantization)
    if quantization.quant_min is not None or quantization.quant_max is not None:
        if quantization.axis is not None:
            raise c.unsupported_error("a reduced range and a scale for each channel of what is computed at run time", rule="not-constant")
        bounds = [c.const(dequantize_float32(limit, quantization), "limit") for limit in quantization.limits(dtype)]
        name = c.emit("Clip", [name, *bounds], hint="limited")
        quantization = replace(quantization, quant_min=None, quant_max=None)
    # multiplies by a reciprocal in float32, which is known if the quantization has the scale of the file
    is_known = order == ROUNDED and quantization.is_per_tensor and dtype in ("int8", "uint8") and c.lookup(name).dtype == "float32"
    if is_known and (exact is None or np.array_equal(exact.reshape(-1), quantization.scale)):
        return c.emit("Quantize", [name], dtype=dtype, quantization=quantization, hint=hint, arithmetic="reciprocal")
    return c.emit("Quantize", [name], dtype=dtype, quantization=quantization, hint=hint)


def _require_fit(c: Reading, shape: tuple[int, ...], quantization: Quantization) -> None:
    if (
        quantization.axis is not None
        and not quantization.block_size
        and (quantization.axis >= len(shape) or shape[quantization.axis] != quantization.scale.size)
    ):
        raise c.invalid(
            f"{quantization.scale.size} scales do not fit axis {quantization.axis} of a tensor of shape {shape}", rule="counts-differ"
        )


def emit_dequantize(c: Reading, stored: str, dtype: str = "float32", hint: str = "") -> str:
    """The float values of integers with a quantization."""
    return c.emit("Dequantize", [stored], dtype=dtype, quantization=None, hint=hint)


def cast_to_float32(c: Reading, name: str) -> str:
    """A tensor as float32."""
    if c.lookup(name).dtype == "float32":
        return name
    return c.emit("Cast", [name], hint="real", to="float32")


def decomposed_quantize(
    c: Reading, data: str, scale: str, zero_point: str, limits: tuple[int, int], dtype: str, order: str = ROUNDED
) -> Value:
    """Integers with a quantization that is known only at run time, as plain numbers: clamp(rint(x / scale) + zero_point), part by part."""
    reciprocal = 1.0 / Part(c, cast_to_float32(c, scale))
    steps: Value = Part(c, cast_to_float32(c, data)) * reciprocal
    for part in ("Add", "Round") if order == SHIFTED else ("Round", "Add"):
        if part == "Round":
            steps = apply("Round", steps)
        elif zero_point:
            steps = steps + Part(c, cast_to_float32(c, zero_point))
    return apply("Cast", clip(steps, *limits), to=dtype, hint="")


def decomposed_dequantize(c: Reading, data: str, scale: str, zero_point: str) -> Value:
    """The float values of integers with a quantization that is known only at run time: (q - zero_point) * scale."""
    rounded = c.producer(data, "Cast")
    is_whole = rounded is not None and c.lookup(rounded.inputs[0]).dtype == "float32"  # within the type, before the Cast
    steps: Value = Part(c, rounded.inputs[0] if rounded is not None and is_whole else cast_to_float32(c, data))
    if zero_point:
        steps = steps - Part(c, cast_to_float32(c, zero_point))
    return apply("Mul", steps, Part(c, cast_to_float32(c, scale)), hint="")
