"""The kinds that are written for PyTorch, by family: each the function that writes it as calls of aten and quantized_decomposed."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.torch.writers import (
    data_movement,
    detection,
    elementwise,
    indexing,
    layers,
    norm,
    numbers,
    pool_resize,
    quantize,
    recurrent,
    sizes,
)
from qconvert.formats.torch.writing import WriteFunction

__all__ = ["WRITERS"]

_FAMILIES = (quantize, layers, elementwise, norm, pool_resize, data_movement, recurrent, indexing, numbers, detection, sizes)
WRITERS: Mapping[str, WriteFunction] = {
    kind: sizes.defer_sizes(write) if kind in sizes.FOLLOWED else write for family in _FAMILIES for kind, write in family.WRITERS.items()
}
