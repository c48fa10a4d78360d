"""All models of a folder at once."""

from __future__ import annotations

from qconvert.batches.driver import batch
from qconvert.batches.jobs import STATUSES, BatchReport, Outcome

__all__ = ["STATUSES", "BatchReport", "Outcome", "batch"]
