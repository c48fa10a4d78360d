"""Models that another framework holds in memory: as canonical graphs, and made of them."""

from __future__ import annotations

from qconvert.live.torch_modules import from_torch, to_torch

__all__ = ["from_torch", "to_torch"]
