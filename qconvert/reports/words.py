"""How names and numbers stand on a page."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from qconvert.errors import printable
from qconvert.graph import Array, Shape, Tensor

__all__ = ["grid_of", "numbers", "said", "share", "shown", "sized"]

#: A model's names may be megabytes long.
_LONGEST = 200
_LONGEST_SENTENCE = 2000
#: Of a list of numbers, as many are shown.
_MOST = 4


def shown(text: object) -> str:
    """A text of a model on one line, without control characters, its middle left out where it is long. Escaping is the page's work."""
    words = printable(str(text)[: 4 * _LONGEST], one_line=True) if len(str(text)) > 4 * _LONGEST else printable(str(text), one_line=True)
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST // 2]}…{words[-_LONGEST // 2 :]}"


def said(text: object) -> str:
    """A sentence of qconvert's own, which may be long and quote names, or a value of metadata."""
    words = str(text)
    if words.startswith("base64:"):
        return f"{3 * (len(words) - 7) // 4:,} bytes"
    return printable(words[:_LONGEST_SENTENCE], one_line=True) + ("…" if len(words) > _LONGEST_SENTENCE else "")


def numbers(values: Array | Iterable[float]) -> str:
    """A few numbers, such as the scales of channels: one where all are equal, else the first, and how many there are."""
    found = np.asarray(values).reshape(-1)
    if found.size and (found == found[0]).all():
        return f"{found[0]:.9g}" + (f" × {found.size}" if found.size > 1 else "")
    said = ", ".join(f"{value:.6g}" for value in found[:_MOST])
    return said + (f" … ({found.size})" if found.size > _MOST else "")


def sized(shape: Shape | None) -> str:
    """A shape: [1, 8, 8], ["batch", 8], or [?] where not even the rank is known."""
    return "[?]" if shape is None else f"[{', '.join(shown(size) for size in shape)}]"


def share(value: float) -> str:
    """A share in per cent; only all of them print as 100%."""
    return "100%" if value == 1 else f"{min(100 * value, 99.9999):.4f}%"


def grid_of(tensor: Tensor) -> tuple[str, str]:
    """Scales and zero points of a tensor in words; ("", "") without a grid."""
    q = tensor.quantization
    if q is None:
        return "", ""
    along = f", axis {q.axis}" if q.axis is not None else ""
    blocks = f", blocks of {q.block_size}" if q.block_size else ""
    return f"{numbers(q.scale)}{along}{blocks}", numbers(q.zero_point)
