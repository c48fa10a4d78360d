"""QONNX: quantization as nodes in float (Quant, BipolarQuant, Trunc), as Brevitas, FINN and hls4ml exchange it.

The meaning is that of the qonnx package, version 1.0 (docs/qonnx-custom-ops).
"""

from __future__ import annotations

from qconvert.formats.onnx.qonnx.nodes import read_bipolar_quant, read_quant, read_trunc
from qconvert.formats.onnx.reading import Readers
from qconvert.formats.onnx.signatures import QONNX_DOMAINS

__all__ = ["READERS"]

_READERS: Readers = {
    "Quant": read_quant,
    "IntQuant": read_quant,
    "BipolarQuant": read_bipolar_quant,
    "Trunc": read_trunc,
}

READERS: Readers = {f"{domain}.{name}": read for domain in QONNX_DOMAINS for name, read in _READERS.items()}
