"""Long names in columns."""

from __future__ import annotations

__all__ = ["shortened"]


def shortened(text: str, size: int) -> str:
    """A text of at most `size` characters, cut in the middle: names differ at their ends."""
    if len(text) <= size:
        return text
    behind = (size - 1) // 2
    return f"{text[: size - 1 - behind]}…{text[len(text) - behind :]}"
