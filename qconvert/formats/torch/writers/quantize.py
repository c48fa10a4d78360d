"""Between float values and quantizations, by quantized_decomposed's operators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.formats.torch.writers.kernels import write_xnnpack_line
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Op, integer_range

__all__ = ["WRITERS"]


def write_quantize(op: Op, b: Builder) -> None:
    """Quantize, and Requantize by way of float values. The quantize of quantized_decomposed takes float32 alone."""
    if op.kind == "Requantize" and write_xnnpack_line(op, b):
        return
    node, source, result = b.float_value(op.inputs[0]), b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    if b.wide and op.attributes.get("arithmetic") and (quantization := result.quantization) is not None and quantization.is_per_tensor:
        b.note_operator()
        low = integer_range(result.dtype)[0]
        wide = b.cast(b.stored_value(source.name), "float64")
        total = b.aten("mul.Tensor", wide, float(np.float32(1) / quantization.scale[0]))
        total = b.cast(b.aten("add.Tensor", total, float(quantization.zero_point[0] - low)), "float32")
        stored = b.aten("clamp", b.aten("round", total), 0.0, 255.0)
        stored = b.aten("add.Tensor", stored, float(low)) if low else stored
        b.set_node(op.outputs[0], b.cast(stored, result.dtype))
        return
    if not b.wide and not source.is_quantized and source.dtype != "float32":
        node = b.cast(node, "float32")
    b.set_node(op.outputs[0], b.quantize(node, result))


def write_dequantize(op: Op, b: Builder) -> None:
    """Dequantize, in float32; another type after a cast."""
    node, dtype = b.float_value(op.inputs[0]), b.tensor(op.outputs[0]).dtype
    b.set_node(op.outputs[0], node if dtype == "float32" else b.cast(node, dtype))


def write_dynamic_quantize(op: Op, b: Builder) -> None:
    """DynamicQuantizeLinear, as ONNX defines it: 255 steps from min(x, 0) to max(x, 0); zero is exact."""
    data = b.stored_value(op.inputs[0])
    b.note_operator()
    low, high = (
        b.aten(side, b.aten(extreme, data), limit) for extreme, side, limit in (("min", "clamp_max", 0.0), ("max", "clamp_min", 0.0))
    )
    scale = b.aten("div.Tensor", b.aten("sub.Tensor", high, low), 255.0)
    ones = b.aten("ones_like", scale)
    step = b.aten("where.self", b.aten("eq.Scalar", scale, 0.0), ones, scale)
    point = b.aten("hardtanh", b.aten("round", b.aten("neg", b.aten("div.Tensor", low, step))), 0.0, 255.0)
    whole = b.aten("add.Tensor", b.aten("round", b.aten("div.Tensor", data, step)), point)
    for name, node in zip(op.outputs, (b.aten("hardtanh", whole, 0.0, 255.0), scale, point), strict=True):
        if name:
            b.set_node(name, node if node is scale else b.cast(node, "uint8"))


def write_cast(op: Op, b: Builder) -> None:
    """Cast of plain numbers."""
    b.set_node(op.outputs[0], b.cast(b.stored_value(op.inputs[0]), str(op["to"])))


def write_identity(op: Op, b: Builder) -> None:
    """Identity, and Reinterpret: the same integers, which readers dequantize by the new quantization."""
    b.set_node(op.outputs[0], b.aten("alias", b.stored_value(op.inputs[0])))


WRITERS: Mapping[str, WriteFunction] = {
    "Quantize": write_quantize,
    "Requantize": write_quantize,
    "Dequantize": write_dequantize,
    "Reinterpret": write_identity,
    "DynamicQuantizeLinear": write_dynamic_quantize,
    "Cast": write_cast,
    "Identity": write_identity,
}
