"""Rewriting graphs: patterns that find operators, the Rewriter that puts others in their place."""

from __future__ import annotations

from qconvert.rewriting.parts import Match, Pattern, find_matches
from qconvert.rewriting.requantize import with_quantization
from qconvert.rewriting.rewriter import Rewriter, needed_ops

__all__ = ["Match", "Pattern", "Rewriter", "find_matches", "needed_ops", "with_quantization"]
