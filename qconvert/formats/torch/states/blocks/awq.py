"""AWQ (gemm): 8 outputs in a word, in the order 0, 2, 4, 6, 1, 3, 5, 7.

`qweight` int32 [K, N / 8], `qzeros` int32 [G, N / 8], `scales` [G, N]; the value is scale * (q - zero point). Source: packing_utils.py
of AutoAWQ.
"""

from __future__ import annotations

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.states.blocks.config import Config
from qconvert.formats.torch.states.blocks.packing import Layer, layer_in_blocks, scales_of, unpack, words_of
from qconvert.formats.torch.states.entries import Entries
from qconvert.graph import Array

__all__ = ["read_awq"]

_BITS, _PER_WORD = 4, 8
#: Where in a word the integers of its eight outputs stand.
_PLACES = np.array((0, 4, 1, 5, 2, 6, 3, 7))


def read_awq(entries: Entries, layer: str, config: Config) -> Layer:
    """The weight of a layer; see in_blocks()."""
    words, packed, scales = words_of(entries, layer, "qweight"), words_of(entries, layer, "qzeros"), scales_of(entries, layer, "scales")
    groups, outputs = scales.shape
    if words.shape[1] * _PER_WORD != outputs or packed.shape != (groups, words.shape[1]):
        raise InvalidModelError(
            f"qweight {list(words.shape)}, qzeros {list(packed.shape)} and scales {list(scales.shape)} do not fit each other",
            where=repr(layer),
            rule="blocks-do-not-fit",
        )
    config.require("bits", _BITS, layer)
    config.require_packing(layer, "version", ("gemm",))
    return layer_in_blocks(layer, _BITS, _in_order(words).T, scales.T, _in_order(packed).T)


def _in_order(words: Array) -> Array:
    """The integers of all outputs, in their order: [..., N / 8] -> [..., N]."""
    each = unpack(words, _BITS, words.shape[1] * _PER_WORD).reshape(*words.shape, _PER_WORD)
    return each[..., _PLACES].reshape(words.shape[0], -1)
