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

_WRITERS: Mapping[str, WriteFunction] = {
    **quantize.WRITERS,
    **layers.WRITERS,
    **elementwise.WRITERS,
    **norm.WRITERS,
    **pool_resize.WRITERS,
    **data_movement.WRITERS,
    **recurrent.WRITERS,
    **indexing.WRITERS,
    **numbers.WRITERS,
    **detection.WRITERS,
    **sizes.WRITERS,
}
WRITERS = {kind: sizes.defer_sizes(write) if kind in sizes.FOLLOWED else write for kind, write in _WRITERS.items()}
