"""From one way of storing numbers to another: quantizations, types, labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic import quantize, quantize_float32, saturate, scale_and_zero_point, torch_quantize, xnnpack_requantize
from qconvert.arithmetic.storage import DTYPES, Array, canonical_dtype, integer_range, numpy_dtype
from qconvert.operators.attributes import choice, has, same_shape
from qconvert.operators.call import FLOATS, Call, ExactResult, Result, is_plain, with_kernel
from qconvert.operators.kind import Kind
from qconvert.operators.properties import ELEMENTWISE, MIXES, same_axes


def cast(call: Call) -> Array:
    """Cast: the stored numbers in another type; a float loses its fraction."""
    return call.raw().astype(numpy_dtype(call["to"]))


def _cast_fold(call: Call) -> Any:
    """The same number in another type, rounded to even; None where it does not fit, which ONNX leaves open."""
    value, wanted = call.raw(), str(call["to"])
    have = canonical_dtype(value.dtype)
    if not is_plain(call) or "string" in (have, wanted):
        return None
    if wanted == have:
        return value
    if wanted == "bool":
        return value != 0
    if wanted in FLOATS or (wanted == "bfloat16" and have in ("float32", "float16", "bool", "int8", "uint8")):
        return value.astype(numpy_dtype(wanted))
    if "float" in wanted or wanted == "unknown" or "complex" in have:
        return None
    low, high = integer_range(wanted)
    wide = np.trunc(value.astype(np.float64)) if "float" in have else value if value.dtype.kind in "biu" else value.astype(np.int64)
    if wide.size and not (low <= wide.min().item() and wide.max().item() <= high):
        return None
    return (wide.astype(np.int64) if "float" in have and wanted != "uint64" else wide).astype(numpy_dtype(wanted))


def dynamic_quantize(call: Call) -> list[Array]:
    """DynamicQuantizeLinear of ONNX: (uint8, scale, zero point) of a range that includes 0.

    The specification computes in float32, and so does this: which side a tie falls on depends on it. All zeros have the scale 1,
    as in onnxruntime; the specification would divide by zero.
    """
    x = call.raw().astype(np.float32)
    low, high = np.float32(x.min(initial=0)), np.float32(x.max(initial=0))
    scale = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
    zero_point = np.rint(np.clip(-low / scale, 0, 255))
    stored = np.clip(np.rint(x / scale) + zero_point, 0, 255)
    return [stored.astype(np.uint8), np.asarray(scale), np.asarray(zero_point, np.uint8)]


def evaluate_quantize(call: Call) -> Result:
    """Quantize, rounded once; with an arithmetic the stored integers are those of a kernel in float32."""
    (result,), data = call.results, call.tensors[0]
    quantization = result.per_tensor
    eight_bits = result.dtype in ("int8", "uint8") and data is not None and data.dtype == "float32"
    if not call["arithmetic"] or quantization is None or not eight_bits:
        return call.values()
    low = integer_range(result.dtype)[0]
    if call["arithmetic"] == "fused":
        stored = torch_quantize(call.raw(), quantization.scale[0], quantization.point - low) + low
    else:
        stored = np.nan_to_num(quantize_float32(call.raw(), quantization, by_reciprocal=call["arithmetic"] == "reciprocal"), nan=low)
    return ExactResult(call.values(), saturate(stored, result.dtype))


def _quantize_fold(call: Call) -> Any:
    """QuantizeLinear: saturate(round_half_even(x / scale) + zero_point), in float32."""
    x, (result,) = call.raw(), call.results
    if call["arithmetic"]:
        return None
    if x.dtype != np.float32 or result.quantization is None or "float" in result.dtype or np.isnan(x).any():
        return None
    return quantize(x, result.quantization, result.dtype)


def _dequantize_fold(call: Call) -> Any:
    """DequantizeLinear: (x - zero_point) * scale, in float32."""
    tensor = call.tensors[0]
    if tensor is None or tensor.quantization is None or (call.results[0].name in ("", tensor.name)):
        return None
    scale, zero_point = scale_and_zero_point(tensor.quantization, call.raw().shape)
    if "float" in tensor.dtype:
        return call.raw().astype(np.float32) * scale
    return (call.raw().astype(np.int64) - zero_point).astype(np.float32) * scale


KINDS = (
    Kind(
        "Identity",
        scales_channels=True,
        shape=same_shape,
        rule="move",
        evaluate=Call.raw,
        fold=Call.raw,
        layout=ELEMENTWISE,
        keeps_axis=same_axes,
    ),
    Kind(
        "Cast",
        nearby=True,
        polynomial=lambda form: form,
        shape=same_shape,
        rule="plain",
        evaluate=cast,
        fold=_cast_fold,
        layout=ELEMENTWISE,
        types="any -> @to",
        attributes=has(to=choice([dtype for dtype in DTYPES if dtype != "unknown"])),
    ),
    # These take scale and zero point from their tensors, not from inputs.
    Kind(
        "Quantize",
        quantizes=True,
        shape=same_shape,
        rule="convert",
        evaluate=evaluate_quantize,
        fold=_quantize_fold,
        layout=ELEMENTWISE,
        attributes=has(arithmetic=choice(("", "fused", "reciprocal", "divided"), "")),
    ),
    Kind(
        "Dequantize",
        dequantizes=True,
        shape=same_shape,
        rule="convert",
        evaluate=Call.values,
        fold=_dequantize_fold,
        layout=ELEMENTWISE,
    ),
    Kind(
        "Requantize",
        shape=same_shape,
        rule="convert",
        evaluate=with_kernel(Call.values, lambda call, given, output: xnnpack_requantize(call.raw(), given, output, call.results[0].dtype)),
        layout=ELEMENTWISE,
        attributes=has(arithmetic=choice(("", "xnnpack_line"), "")),
        rounds_once=True,
    ),
    Kind("Reinterpret", shape=same_shape, rule="relabel", evaluate=Call.raw, fold=Call.raw, layout=ELEMENTWISE),
    Kind(
        "DynamicQuantizeLinear",
        "data",
        "data data data",
        samples=MIXES,
        shape=lambda op, s: [s.shape(0), (), ()],
        rule="plain",
        evaluate=dynamic_quantize,
        types="float32 -> uint8 float32 uint8",
    ),
)
