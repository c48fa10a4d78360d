"""Quark: 4 bits in AWQ's order of nibbles, int4 in two's complement or uint4, with zero points in the same type; read alone.

`weight` int32 [K, N / 8], `weight_scale` [G, N], `weight_zero_point` int32 [G, N / 8]; config.json says int4 or uint4, and the order
(`export.pack_method`: "reorder" for AWQ's, "order" for 0 to 7). The value is scale * (q - zero point). Source: export/nn/modules of
amd-quark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.checkpoints.activations import read_activations
from qconvert.checkpoints.awq import PLACES, unpacked_zeros
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.container import Container, Parts
from qconvert.checkpoints.weight import BlockWeight, columns_of_words
from qconvert.errors import UnsupportedError

_BITS, _PER_WORD = 4, 8
_SIGNS = np.uint32(0x88888888)  # what makes codes of two's complement
_ORDERS: Mapping[str, tuple[int, ...]] = {"reorder": PLACES, "order": tuple(range(_PER_WORD))}


def _read(parts: Parts, config: Config) -> BlockWeight:
    words, scales, packed = parts.words("weight"), parts.scales("weight_scale"), parts.words("weight_zero_point")
    groups, outputs = scales.shape
    if words.shape[1] * _PER_WORD != outputs or packed.shape != (groups, words.shape[1]) or words.shape[0] % (groups * _PER_WORD):
        raise parts.shapes_error("weight", "weight_scale", "weight_zero_point")
    config.require_block(parts.layer, words.shape[0] // groups, words.shape[0])
    is_signed, places = _read_packing(config, parts.layer)
    if is_signed:
        words, packed = words ^ _SIGNS, packed ^ _SIGNS
    turned = columns_of_words(words, columns=places, is_row_major=not parts.in_columns)
    zeros, how = unpacked_zeros(packed, places), read_activations(parts, config)
    return BlockWeight(turned, _BITS, words.shape[0], scales.T, zeros, is_signed=is_signed, activations=how)


def _read_packing(config: Config, layer: str) -> tuple[bool, tuple[int, ...]]:
    """Whether the integers are signed, and where the nibbles of eight outputs stand."""
    weight: Any = config.quark_of_layer(layer).get("weight")
    dtype = weight.get("dtype") if isinstance(weight, dict) else None
    export = config.stated.get("export")
    order = str(export.get("pack_method", "reorder")) if isinstance(export, dict) else "reorder"
    if dtype not in ("int4", "uint4") or order not in _ORDERS:
        raise UnsupportedError(
            f"config.json states weights of {dtype!r} in the order {order!r}; int4 or uint4 in the order 'reorder' or 'order' are read",
            where=repr(layer),
            rule="blocks-not-covered",
        )
    return dtype == "int4", _ORDERS[order]


QUARK = Container(
    "quark",
    "Quark (int4 or uint4)",
    ("weight_scale", "weight", "weight_zero_point", "input_scale", "input_zero_point"),
    lambda parts: parts.dtype("weight") == "int32" and "weight_zero_point" in parts,
    _read,
    methods=("quark",),
)
