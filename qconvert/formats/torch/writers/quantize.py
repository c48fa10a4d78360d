"""Between float values and quantizations, by quantized_decomposed's operators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.formats.torch.writers.kernels import write_xnnpack_line
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Op, integer_range


def write_quantize(op: Op, b: Builder) -> None:
    """Quantize, and Requantize by way of float values. The quantize of quantized_decomposed takes float32 alone."""
    if op.kind == "Requantize" and write_xnnpack_line(op, b):
        return
    node, source, result = b.float_input(op), b.input_tensor(op), b.output_tensor(op)
    if b.wide and op.attributes.get("arithmetic") and (quantization := result.quantization) is not None and quantization.is_per_tensor:
        b.note_operator()
        low = integer_range(result.dtype)[0]
        wide = b.cast(b.stored_value(source.name), "float64")
        total = wide * float(np.float32(1) / quantization.scale[0])
        total = b.cast(total + float(quantization.zero_point[0] - low), "float32")
        stored = b.aten("clamp", b.aten("round", total), 0.0, 255.0)
        stored = stored + float(low) if low else stored
        b.store(op, b.cast(stored, result.dtype))
        return
    if not b.wide and not source.is_quantized and source.dtype != "float32":
        node = b.cast(node, "float32")
    b.store(op, b.quantize(node, result))


def write_dequantize(op: Op, b: Builder) -> None:
    """Dequantize, in float32; another type after a cast."""
    node, dtype = b.float_input(op), b.output_tensor(op).dtype
    b.store(op, node if dtype == "float32" else b.cast(node, dtype))


def write_dynamic_quantize(op: Op, b: Builder) -> None:
    """DynamicQuantizeLinear, as ONNX defines it: 255 steps from min(x, 0) to max(x, 0); zero is exact."""
    data = b.stored_input(op)
    b.note_operator()
    low, high = (
        b.aten(side, b.aten(extreme, data), limit) for extreme, side, limit in (("min", "clamp_max", 0.0), ("max", "clamp_min", 0.0))
    )
    scale = (high - low) / 255.0
    ones = b.aten("ones_like", scale)
    step = b.aten("where.self", b.aten("eq.Scalar", scale, 0.0), ones, scale)
    point = b.aten("hardtanh", b.aten("round", b.aten("neg", low / step)), 0.0, 255.0)
    whole = b.aten("round", data / step) + point
    for name, node in zip(op.outputs, (b.aten("hardtanh", whole, 0.0, 255.0), scale, point), strict=True):
        if name:
            b.set_node(name, node if node is scale else b.cast(node, "uint8"))


def write_cast(op: Op, b: Builder) -> None:
    """Cast of plain numbers."""
    b.store(op, b.cast(b.stored_input(op), op["to"]))


def write_identity(op: Op, b: Builder) -> None:
    """Identity, and Reinterpret: the same integers, which readers dequantize by the new quantization."""
    b.store(op, b.aten("alias", b.stored_input(op)))


WRITERS: Mapping[str, WriteFunction] = {
    "Quantize": write_quantize,
    "Requantize": write_quantize,
    "Dequantize": write_dequantize,
    "Reinterpret": write_identity,
    "DynamicQuantizeLinear": write_dynamic_quantize,
    "Cast": write_cast,
    "Identity": write_identity,
}
