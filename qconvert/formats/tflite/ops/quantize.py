"""QUANTIZE and DEQUANTIZE."""

from __future__ import annotations

from qconvert.formats.tflite.reading import ReadFunction, Reading

__all__ = ["READERS"]


def read_quantize(op: Reading) -> None:
    """QUANTIZE: from float, or from one quantization to another (requantize)."""
    op.emit("Requantize" if op.tensor().is_quantized else "Quantize")


def read_dequantize(op: Reading) -> None:
    """DEQUANTIZE: from integers, or from float16 constants."""
    if op.tensor().is_quantized:
        op.emit("Dequantize")
    else:
        op.emit("Cast", to=op.result().dtype)


READERS: dict[str, ReadFunction] = {
    "QUANTIZE": read_quantize,
    "DEQUANTIZE": read_dequantize,
}
