"""The kinds that are written for PyTorch, by family: each the function that writes it as calls of aten and quantized_decomposed."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.torch.writers import (
    data_movement,
    detection,
    elementwise,
    layers,
    norm,
    numbers,
    pool_resize,
    recurrent,
)
from qconvert.formats.torch.writing import WriteFunction

__all__ = ["WRITERS"]

_FAMILIES = (layers, elementwise, norm, pool_resize, data_movement, recurrent, numbers, detection)
WRITERS: Mapping[str, WriteFunction] = {
    kind: numbers.defer_sizes(write) if kind in numbers.FOLLOWED else write
    for family in _FAMILIES
    for kind, write in family.WRITERS.items()
}
