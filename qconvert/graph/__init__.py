"""The canonical quantized graph: schema, operator kinds, shapes, invariants, differences."""

from __future__ import annotations

from qconvert.arithmetic.storage import DTYPES, Array, Quantization, canonical_dtype, equal_data, in_bytes, integer_range, numpy_dtype
from qconvert.graph.names import Names
from qconvert.graph.schema import Arrays, Attribute, Graph, Op, Producers, Shape, Signature, Tensor, count_kinds, drop_keys

__all__ = [
    "DTYPES",
    "Array",
    "Arrays",
    "Attribute",
    "Graph",
    "Names",
    "Op",
    "Producers",
    "Quantization",
    "Shape",
    "Signature",
    "Tensor",
    "canonical_dtype",
    "count_kinds",
    "drop_keys",
    "equal_data",
    "in_bytes",
    "integer_range",
    "numpy_dtype",
]
