"""How tensors stand on a page."""

from __future__ import annotations

from qconvert.graph import Shape, Tensor
from qconvert.tables import format_text, numbers

__all__ = ["format_quantization", "format_shape"]


def format_shape(shape: Shape | None) -> str:
    """A shape: [1, 8, 8], ["batch", 8], or [?] where not even the rank is known."""
    return "[?]" if shape is None else f"[{', '.join(format_text(size) for size in shape)}]"


def format_quantization(tensor: Tensor) -> tuple[str, str]:
    """Scales and zero points of a tensor in words; ("", "") without a quantization."""
    q = tensor.quantization
    if q is None:
        return "", ""
    along = f", axis {q.axis}" if q.axis is not None else ""
    blocks = f", blocks of {q.block_size}" if q.block_size else ""
    return f"{numbers(q.scale)}{along}{blocks}", numbers(q.zero_point)
