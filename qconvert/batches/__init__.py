"""All models of a folder at once."""

from __future__ import annotations

from qconvert.batches.driving import batch
from qconvert.batches.types import STATUSES, BatchReport, Outcome

__all__ = ["STATUSES", "BatchReport", "Outcome", "batch"]
