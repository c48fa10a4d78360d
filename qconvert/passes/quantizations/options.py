"""The options that passes between quantizations share."""

from __future__ import annotations

from qconvert.plugins import Option

__all__ = ["BLOCK_SIZE", "EDGES", "GRANULARITY", "SCOPE"]

EDGES = Option(
    "edges",
    str,
    "keep",
    "Quantization of graph inputs and outputs: keep (a Requantize is added) or change.",
    ("keep", "change"),
    border=True,
)
SCOPE = Option(
    "scope", str, "asked", "Tensors that become symmetric: asked (those that the target requires) or all (the default with --pass).",
    ("asked", "all"), by_hand="all",
)  # fmt: skip
GRANULARITY = Option(
    "granularity", str, "axis", "Scales of weights that change: axis (per-channel) or tensor (per-tensor).", ("axis", "tensor"),
)  # fmt: skip
BLOCK_SIZE = Option(
    "block_size",
    int,
    0,
    "Weights per block with one scale each, for weights that change_bits makes narrower; 0: no blocks.",
    (0, 16, 32, 64, 128, 256),
)
