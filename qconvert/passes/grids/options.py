"""The options that passes between grids share."""

from __future__ import annotations

from qconvert.plugins import Option

__all__ = ["BLOCK_SIZE", "EDGES", "GRANULARITY", "SCOPE"]

EDGES = Option(
    "edges",
    str,
    "keep",
    "grids of graph inputs and outputs: keep (a Requantize stands between) or change.",
    ("keep", "change"),
    border=True,
)
SCOPE = Option(
    "scope", str, "asked", "What becomes symmetric: asked (what the target asks for) or all (the default of a pass named with --pass).",
    ("asked", "all"), by_hand="all",
)  # fmt: skip
GRANULARITY = Option(
    "granularity", str, "axis", "scales of weights that change: axis (one for each output channel) or tensor (one).", ("axis", "tensor"),
)  # fmt: skip
BLOCK_SIZE = Option(
    "block_size",
    int,
    0,
    "how many weights of a matrix share a scale that change_bits makes narrower; 0 for no blocks.",
    (0, 16, 32, 64, 128, 256),
)
