"""Quantize, Dequantize, Requantize, Reinterpret and Identity."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.initializers import DTYPE_NAMES
from qconvert.formats.onnx.ops.integer_arithmetic import Rescale
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.values import place_of
from qconvert.formats.reading.quantizations import label_key
from qconvert.graph import Op, Quantization, Tensor, integer_range
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.kernels.litert.forms import line
from qconvert.operators import kind_of


def write_conversion(op: Op, b: Builder) -> None:
    """Quantize, Dequantize and Requantize: a QuantizeLinear, a DequantizeLinear, or both. Their scale has the type of the float values."""
    source, result = b.operand(op), b.result(op)
    if result.dtype == "int32" and result.quantization is not None:
        _write_int32(op, b, source, result)
    elif source.quantization is not None and result.quantization is not None:
        if not write_line(op, b):
            b.finish(op, b.float_value(source.name))
    elif source.quantization is not None and result.dtype != "float32":
        b.rename(b.dequantize(b.stored_value(source.name), source.dtype, source.quantization, result.dtype), result.name)
    elif result.quantization is not None and _would_be_fused(op, b):
        b.finish(op, b.keep_apart(b.float_value(source.name), source.name))
    elif result.quantization is not None and source.dtype != "float32":
        b.quantize(b.stored_value(source.name), result, result.name, source.dtype)
    else:
        b.finish(op, b.float_value(source.name))


def _write_int32(op: Op, b: Builder, source: Tensor, result: Tensor) -> None:
    """To a quantization of int32, which QuantizeLinear does not have: integers as TFLite's kernel rescales them, float values in
    float64."""
    quantizations = [tensor.quantization for tensor in (source, result) if tensor.quantization is not None]
    if not all(quantization.is_per_tensor for quantization in quantizations):
        raise b.unsupported_error(op, "int32 with scales for each channel", rule="several-zero-points")
    scale, point = quantizations[-1].step, quantizations[-1].point
    value = place_of(op, b).stored(source.name, "float64")
    if len(quantizations) == 1:
        steps = (value / scale).round()
    else:
        low, high = integer_range(source.dtype)
        own = quantizations[0].point
        steps = Rescale.of(quantizations[0].step / scale, max(abs(low - own), abs(high - own)), op, b, "steps").emit(value - own)
    (steps + point).clip(*integer_range("int32")).finish(result.name)


def write_line(op: Op, b: Builder) -> bool:
    """Writes a Requantize or LeakyRelu with the integers of the kernel that it names, as a LeakyRelu on another scale than that of the
    data; False if it names none."""
    found = line(b.graph, op) if op["arithmetic"] else None
    if found is not None:
        value = dequantize_with_scale(b, b.operand(op), found[0])
        b.compute(op, [value], "LeakyRelu", alpha=found[1])
    return found is not None


def dequantize_with_scale(b: Builder, data: Tensor, scale: float, zero_point: int | None = None) -> str:
    """The float values of a tensor as if it had another scale, and another zero point if one is given.

    A Cast to the same type, which onnxruntime drops, makes the integers plain, so that they may get one.
    """
    assert data.quantization is not None
    plain = b.cast(b.stored_value(data.name), data.dtype, hint=f"{data.name}/plain")
    point = data.quantization.point if zero_point is None else zero_point
    return b.dequantize(plain, data.dtype, Quantization.per_tensor(float(np.float32(scale)), point))


def _would_be_fused(op: Op, b: Builder) -> bool:
    """Whether onnxruntime would run the float operator before a Quantize on integers with other results, where the source's kernels do not.

    It rounds the float weights of a product to int8 (weight_bias_quantization.cc), and makes a QLinearSoftmax of a Softmax, which is up to
    a step off, and wrong where its float32 overflows. It does so between DequantizeLinear and QuantizeLinear alone: a Max of one operand,
    which its optimizer leaves alone, stands between.
    """
    maker = b.producer(op.inputs[0]) if b.is_exact and b.forms.guards and SOURCE_KERNELS in b.graph.metadata else None
    if maker is None:
        return False
    if maker.kind == "Softmax":
        source = b.producer(maker.inputs[0])
        return source is not None and kind_of(source).dequantizes
    return kind_of(maker).has_weights and not b.operand(maker, 1).is_quantized


def write_identity(op: Op, b: Builder) -> None:
    """The same stored value under another name, and for Reinterpret under another quantization."""
    b.node("Identity", [b.stored_value(op.inputs[0])], op.outputs)


def read_quantize_linear(r: Reading) -> None:
    """QuantizeLinear: the type is that of the zero point, of output_dtype, or uint8. A scale computed at run time stays as it is."""
    stated = DTYPE_NAMES.get(r.attribute("output_dtype", 0), "")
    dtype = r.tensor(2).dtype if r.has(2) else stated or "uint8"
    if r.tensor(0).dtype == "int32":
        raise NotCoveredError("integers to quantize")
    r.require_only(saturate=1, precision=0)
    r.assume(0, r.tensor(1).dtype)
    r.emit("Quantize", [r.input(0)], dtype=dtype, quantization=_read_quantization(r))


def read_dequantize_linear(r: Reading) -> None:
    """DequantizeLinear: the scale is a label of the integers, and its type that of the float values."""
    if r.constant(1) is None or (r.has(2) and r.constant(2) is None):
        _read_computed_scale(r)
        return
    quantization = _read_quantization(r)
    dtype = DTYPE_NAMES.get(r.attribute("output_dtype", 0), "") or r.tensor(1).dtype
    stored = r.tensor(2).dtype if r.has(2) else "int32" if r.tensor(0).dtype == "unknown" else ""
    r.emit("Dequantize", [_without_zero_point(r, quantization) or r.label_input(0, quantization, stored)], dtype=dtype)


def _read_computed_scale(r: Reading) -> None:
    """(x - zero point) * scale, where these are computed when the model runs, of types for which onnxruntime computes no more exactly.

    float32 holds integers of 16 bits; sums of int32 have no zero point, and are rounded to float32 once (onnxruntime, quantize_linear.cc).
    """
    point = r.constant(2) if r.has(2) else np.zeros((), np.int64)
    has_point = point is None or bool(point.any())
    types = ("int8", "uint8", "int16", "uint16", *(() if has_point else ("int32",)))
    if r.tensor(0).dtype not in types or r.tensor(1).dtype != "float32" or r.attribute("block_size", 0):
        raise NotCoveredError(f"a scale {r.tensor(1).name!r} that is computed at run time")
    scale_sizes, point_sizes = _broadcast_sizes(r, 1), _broadcast_sizes(r, 2) if has_point else None
    value = r.emit_inner("Cast", [r.input(0)], "steps", "float32", to="float32")
    if has_point:
        shift = r.emit_inner("Cast", [r.input(2)], "zero_point", "float32", to="float32")
        value = r.emit_inner("Sub", [value, _reshape(r, shift, point_sizes)], "shifted")
    r.emit("Mul", [value, _reshape(r, r.input(1), scale_sizes)], dtype="float32")


def _broadcast_sizes(r: Reading, index: int) -> list[int] | None:
    """The sizes with which scales or zero points, one or several along the node's axis, are broadcast to the data; None for their own."""
    sizes = r.tensor(index).static_shape
    if sizes is None:
        raise NotCoveredError(f"scales of unknown number in {r.tensor(index).name!r}")
    count = math.prod(sizes)
    if not sizes or count == 1:
        return [] if sizes else None
    axis, rank = r.axis(int(r.attribute("axis", 1)), r.rank()), r.rank()
    return None if axis == rank - 1 else [count, *[1] * (rank - 1 - axis)]


def _reshape(r: Reading, value: str, sizes: list[int] | None) -> str:
    return value if sizes is None else r.emit_inner("Reshape", [value, r.const(np.array(sizes, np.int64), "sizes")], "along")


def _without_zero_point(r: Reading, quantization: Quantization) -> str:
    """A bias minus its zero point, which no kernel adds: exactly the same float values. "" where there is none, or no room in int32."""
    if r.tensor(0).dtype != "int32" or quantization.is_symmetric or quantization.block_size:
        return ""
    data = r.constant(0)
    if data is None:
        return ""
    along = [-1 if axis == quantization.axis else 1 for axis in range(data.ndim)]
    values = data.astype(np.int64) - quantization.zero_point.reshape(along if data.ndim else ())
    if values.shape != data.shape or (values != values.astype(np.int32)).any():
        return ""
    quantization = replace(quantization, zero_point=np.zeros_like(quantization.zero_point))
    return r.variant(0, f"shifted_{label_key(quantization)}", values.astype(np.int32), quantization)


def _read_quantization(r: Reading) -> Quantization:
    """Scale and zero point of inputs 1 and 2, along the axis (1 by default) if there are several."""
    scale, rank = r.tensor(1), r.tensor(0).rank
    size = r.constant(1)
    block = int(r.attribute("block_size", 0))
    if size is None:
        raise NotCoveredError(f"a scale {scale.name!r} that is computed at run time")
    if size.ndim == 0 or (size.size == 1 and not _is_along_one(r, size.ndim)):
        return r.quantization(1, 2)
    if rank is None:
        raise NotCoveredError("data of unknown rank with several scales")
    return r.quantization(1, 2, r.axis(int(r.attribute("axis", 1)), rank), block)


def _is_along_one(r: Reading, rank: int) -> bool:
    """Whether one scale in a list belongs to an axis with one element, or is a block's: onnxruntime takes [1] for per tensor too."""
    shape, axis = r.tensor(0).shape, int(r.attribute("axis", 1))
    if rank > 1 or r.attribute("block_size", 0):
        return True
    named = r.attribute("axis") is not None
    return named and shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 1 and r.tensor(0).is_constant


def read_identity(r: Reading) -> None:
    """Identity; of integers that a note gives another quantization, a Reinterpret."""
    found, quantization = r.noted_quantization()
    r.emit("Reinterpret" if found else "Identity", [r.input(0)], r.outputs[:1], quantization=quantization)


WRITERS: Writers = {
    "Quantize": write_conversion,
    "Dequantize": write_conversion,
    "Requantize": write_conversion,
    "Identity": write_identity,
    "Reinterpret": write_identity,
}

READERS: Readers = {
    "QuantizeLinear": read_quantize_linear,
    "DequantizeLinear": read_dequantize_linear,
    "com.microsoft.QuantizeLinear": read_quantize_linear,
    "com.microsoft.DequantizeLinear": read_dequantize_linear,
    "Identity": read_identity,
}
