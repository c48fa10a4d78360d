"""Rewriting graphs: patterns that find operators, the Rewriter that puts others in their place."""

from __future__ import annotations

from qconvert.rewriting.parts import Match, Pattern, dequantized_source, find_matches
from qconvert.rewriting.requantize import with_quantization
from qconvert.rewriting.rewriter import Rewriter

__all__ = [
    "Match",
    "Pattern",
    "Rewriter",
    "dequantized_source",
    "find_matches",
    "with_quantization",
]
