"""Scales without a model: one type for whatever a file says next to a network, and its form as JSON (docs/encodings.schema.json)."""

from __future__ import annotations

from qconvert.encodings.document import from_document, to_document
from qconvert.encodings.types import (
    BATCH_NORM,
    FOLDED,
    FUSED,
    Encoding,
    Encodings,
    Place,
    QParams,
    Range,
    extract_encodings,
    quantization_of,
    symmetric_quantization,
    weights_quantization,
)

__all__ = [
    "BATCH_NORM",
    "FOLDED",
    "FUSED",
    "Encoding",
    "Encodings",
    "Place",
    "QParams",
    "Range",
    "extract_encodings",
    "from_document",
    "quantization_of",
    "symmetric_quantization",
    "to_document",
    "weights_quantization",
]
