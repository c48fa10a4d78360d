"""Quantize, Dequantize, Requantize, Reinterpret and Identity."""

from __future__ import annotations

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.graph import Op

__all__ = ["WRITERS"]


def write_conversion(op: Op, b: Builder) -> None:
    """Quantize, Dequantize and Requantize: a QuantizeLinear, a DequantizeLinear, or both."""
    b.finish(op, b.real(op.inputs[0]))


def write_identity(op: Op, b: Builder) -> None:
    """The same stored value under another name, and for Reinterpret under another quantization."""
    b.node("Identity", [b.stored(op.inputs[0])], op.outputs)


WRITERS: dict[str, WriteFunction] = {
    "Quantize": write_conversion,
    "Dequantize": write_conversion,
    "Requantize": write_conversion,
    "Identity": write_identity,
    "Reinterpret": write_identity,
}
