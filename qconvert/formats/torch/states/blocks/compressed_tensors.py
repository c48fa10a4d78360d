"""compressed-tensors, pack-quantized: signed integers in a stream along the inputs, each stored with half the range added.

`weight_packed` int32 [N, K * bits / 32], `weight_scale` [N, G], `weight_shape` int64 [2], and of asymmetric ones `weight_zero_point` int32
[N * bits / 32, G], packed along the outputs. The value is scale * (q - zero point). Source: pack_quantized.py of compressed-tensors.
"""

from __future__ import annotations

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.states.blocks.config import Config
from qconvert.formats.torch.states.blocks.packing import WORD, Layer, layer_in_blocks, scales_of, unpack, words_of
from qconvert.formats.torch.states.entries import Entries

__all__ = ["read_compressed"]


def read_compressed(entries: Entries, layer: str, config: Config) -> Layer:
    """The weight of a layer; see in_blocks()."""
    words, scales = words_of(entries, layer, "weight_packed"), scales_of(entries, layer, "weight_scale")
    shape = entries.numbers(layer, "weight_shape")
    outputs, inputs = (int(size) for size in shape) if shape is not None and shape.shape == (2,) else (0, 0)
    bits = words.shape[1] * WORD // inputs if inputs > 0 else 0
    if words.shape[0] != outputs or bits not in (2, 3, 4, 8) or words.shape[1] != -(-inputs * bits // WORD):
        raise InvalidModelError(
            f"weight_packed {list(words.shape)} does not fit weight_shape {[outputs, inputs]}", where=repr(layer), rule="blocks-do-not-fit"
        )
    if entries.numbers(layer, "weight_g_idx") is not None:
        raise UnsupportedError("weight_g_idx, the order of the inputs, is not covered", where=repr(layer), rule="act-order-not-covered")
    half = 2 ** (bits - 1)
    points = np.zeros(scales.shape, np.int64)
    if f"{layer}.weight_zero_point" in entries.values:
        packed = words_of(entries, layer, "weight_zero_point")
        if packed.shape != (-(-outputs * bits // WORD), scales.shape[1]):
            raise InvalidModelError(
                f"weight_zero_point {list(packed.shape)} does not fit {outputs} outputs", where=repr(layer), rule="blocks-do-not-fit"
            )
        points = unpack(np.ascontiguousarray(packed.T), bits, outputs).T.astype(np.int64) - half
    integers = unpack(words, bits, inputs).astype(np.int16) - half
    return layer_in_blocks(layer, bits, integers, scales, points, is_signed=True)
