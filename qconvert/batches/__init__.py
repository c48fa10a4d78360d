"""All models of a folder at once."""

from __future__ import annotations

from qconvert.batches.driving import batch
from qconvert.batches.types import ENDS, BatchReport, Outcome

__all__ = ["ENDS", "BatchReport", "Outcome", "batch"]
