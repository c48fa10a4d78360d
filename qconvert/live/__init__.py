"""Models that another framework holds in memory, as canonical graphs."""

from __future__ import annotations

from qconvert.live.to_torch import to_torch

__all__ = ["to_torch"]
