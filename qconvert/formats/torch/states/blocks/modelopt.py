"""INT4 AWQ of ModelOpt: two outputs in a byte, and factors that data are multiplied by.

`weight` uint8 [N / 2, K], whose lower half is output 2n, in two's complement; `weight_scale` float32 [N, G]; perhaps `pre_quant_scale` [K].
The value is scale * q. Source: export/quant_utils.py of TensorRT Model Optimizer.
"""

from __future__ import annotations

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.states.blocks.config import Config
from qconvert.formats.torch.states.blocks.packing import Layer, layer_in_blocks, parts_of, scales_of
from qconvert.formats.torch.states.entries import Entries

__all__ = ["read_modelopt"]


def read_modelopt(entries: Entries, layer: str, config: Config) -> Layer:
    """The weight of a layer; see in_blocks()."""
    for name in ("weight_scale_2", "input_scale"):
        if entries.numbers(layer, name) is not None:
            raise UnsupportedError(f"{name}: data are rounded too, which is not covered", where=repr(layer), rule="dynamic-operator")
    packed, scales = entries.numbers(layer, "weight"), scales_of(entries, layer, "weight_scale")
    if packed is None or packed.dtype != np.uint8 or packed.ndim != 2 or 2 * len(packed) != len(scales):
        raise InvalidModelError(
            f"weight does not have half as many rows as weight_scale {list(scales.shape)}", where=repr(layer), rule="blocks-do-not-fit"
        )
    codes = parts_of(packed.T, 4).T.astype(np.int8)
    integers = np.where(codes > 7, codes - 16, codes)
    factors = entries.numbers(layer, "pre_quant_scale")
    if factors is not None and factors.shape != (integers.shape[1],):
        raise InvalidModelError(
            f"pre_quant_scale has shape {list(factors.shape)}; one for each of {integers.shape[1]} inputs is required",
            where=repr(layer),
            rule="counts-differ",
        )
    made = layer_in_blocks(layer, 4, integers, scales, np.zeros(scales.shape, np.int64), is_signed=True)
    return made if factors is None else Layer(made.weight, factors=factors.astype(np.float32))
