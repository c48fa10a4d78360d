"""Models that another framework holds in memory: as canonical graphs, and made of them."""

from __future__ import annotations

from qconvert.live.from_torch import from_torch
from qconvert.live.to_torch import to_torch

__all__ = ["from_torch", "to_torch"]
