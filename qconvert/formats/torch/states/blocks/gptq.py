"""GPTQ: integers in a stream down the inputs, zero points along the outputs, which version 1 stores less one.

`qweight` int32 [K * bits / 32, N], `qzeros` int32 [G, N * bits / 32], `scales` [G, N], `g_idx` int32 [K]: the group of each input. The
value is scale * (q - zero point). Source: qlinear_cuda.py of AutoGPTQ, BaseQuantLinear of GPTQModel.
"""

from __future__ import annotations

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.states.blocks.config import Config
from qconvert.formats.torch.states.blocks.packing import WORD, Layer, layer_in_blocks, scales_of, unpack, words_of
from qconvert.formats.torch.states.entries import Entries
from qconvert.graph import Array

__all__ = ["read_gptq"]


def read_gptq(entries: Entries, layer: str, config: Config) -> Layer:
    """The weight of a layer; see in_blocks()."""
    words, packed, scales = words_of(entries, layer, "qweight"), words_of(entries, layer, "qzeros"), scales_of(entries, layer, "scales")
    groups, outputs = scales.shape
    bits = packed.shape[1] * WORD // outputs
    inputs = words.shape[0] * WORD // max(bits, 1)
    if words.shape[1] != outputs or packed.shape[0] != groups or bits not in (2, 3, 4, 8) or packed.shape[1] * WORD != outputs * bits:
        raise InvalidModelError(
            f"qweight {list(words.shape)}, qzeros {list(packed.shape)} and scales {list(scales.shape)} do not fit each other",
            where=repr(layer),
            rule="blocks-do-not-fit",
        )
    config.require("bits", bits, layer)
    config.require_packing(layer, "checkpoint_format", ("gptq", "gptq_v2"))
    order = _order(entries.numbers(layer, "g_idx"), inputs, groups, layer)
    points = unpack(packed, bits, outputs).astype(np.int64)
    if config.zero_points_are_less_by_one:
        if (points == 2**bits - 1).any():
            raise UnsupportedError(
                f"a zero point of GPTQ v1 is stored as {2**bits - 1}: writers of 0 less 1 differ in what they leave of its neighbours",
                where=repr(layer),
                remedy="Save the checkpoint again as gptq_v2.",
                rule="zero-point-ambiguous",
            )
        points += 1
    integers = unpack(np.ascontiguousarray(words.T), bits, inputs)
    return layer_in_blocks(layer, bits, integers if order is None else integers[:, order], scales.T, points.T, order=order)


def _order(groups_of: Array | None, inputs: int, groups: int, layer: str) -> Array | None:
    """Which input stands at each place once they are in the order of their groups; None where they are."""
    if groups_of is None:
        return None
    members = np.bincount(np.clip(groups_of.reshape(-1), 0, groups), minlength=groups)
    if groups_of.shape != (inputs,) or inputs % groups or not np.array_equal(members, [inputs // groups] * groups):
        raise InvalidModelError(
            f"g_idx does not give each of {groups} groups {inputs / groups:g} of {inputs} inputs", where=repr(layer), rule="wrong-groups"
        )
    order = np.argsort(groups_of, kind="stable").astype(np.int64)
    return None if np.array_equal(order, np.arange(inputs)) else order
