"""4 bits, 8 outputs in a word: AWQ (gemm), in the order 0, 2, 4, 6, 1, 3, 5, 7, and Quark, which is read alone.

AWQ: `qweight` int32 [K, N / 8], `qzeros` int32 [G, N / 8], `scales` [G, N]. Quark: `weight`, `weight_zero_point` and `weight_scale`
likewise, int4 in two's complement or uint4; config.json says which, and the order (`export.pack_method`: "reorder" for AWQ's, "order" for 0
to 7). The value is scale * (q - zero point). Source: packing_utils.py of AutoAWQ; export/nn/modules of amd-quark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import read_activations
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.container import Container, Documents, Needs, Parts, Written, config_of, divide_blocks
from qconvert.checkpoints.weight import BlockWeight, columns_of_words, pack, unpack
from qconvert.errors import UnsupportedError

_BITS, _PER_WORD = 4, 8
#: Which output each nibble of a word is of.
_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
#: Where in a word the nibbles of its eight outputs stand.
PLACES = tuple(_OUTPUTS.index(output) for output in range(_PER_WORD))


def unpacked_zeros(packed: Array, places: Sequence[int] = PLACES) -> Array:
    """The zero points of all outputs, eight in a word at these places: uint32 [G, N / 8] -> int16 [N, G]."""
    each = unpack(packed, _BITS, packed.shape[1] * _PER_WORD).reshape(*packed.shape, _PER_WORD)
    return each[..., places].reshape(packed.shape[0], -1).T.astype(np.int16)


def _read(parts: Parts, config: Config) -> BlockWeight:
    words, packed, scales = parts.words("qweight"), parts.words("qzeros"), parts.scales("scales")
    groups, outputs = scales.shape
    inputs = words.shape[0]
    block = config.block_with_rest(parts.layer, inputs, groups) or inputs // groups
    if words.shape[1] * _PER_WORD != outputs or packed.shape != (groups, words.shape[1]) or not block or -(-inputs // block) != groups:
        raise parts.shapes_error("qweight", "qzeros", "scales")
    if inputs % _PER_WORD:
        raise parts.shapes_error("qweight")
    config.require("bits", _BITS, parts.layer)
    config.require_block(parts.layer, block, inputs)
    config.require_packing(parts.layer, "version", ("gemm",))
    made = columns_of_words(words, columns=PLACES, is_row_major=not parts.in_columns)
    scale, zero = (divide_blocks(numbers, inputs, block) for numbers in (scales.T, unpacked_zeros(packed)))
    return BlockWeight(made, _BITS, inputs, scale, zero)


def _write(weight: BlockWeight) -> dict[str, Array]:
    assert weight.zero is not None
    zeros = weight.zero.astype(np.uint8).T.reshape(weight.scale.shape[1], -1, _PER_WORD)[..., _OUTPUTS]
    return {
        "qweight": columns_of_words(weight.words, rows=_OUTPUTS).view(np.int32),
        "qzeros": pack(np.ascontiguousarray(zeros.reshape(len(zeros), -1)), _BITS).view(np.int32),
        "scales": weight.scale.T,
    }


def _documents(written: Written) -> Documents:
    bits, block = written.usual
    stated = {
        "quant_method": "awq",
        "bits": bits,
        "group_size": block,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": list(written.real) or None,
    }
    return config_of(stated)


def _recognizes(parts: Parts) -> bool:
    if not ("qweight" in parts and "qzeros" in parts and "scales" in parts):
        return False
    return bool(parts.tensors["qweight"].shape[1:] == parts.tensors["qzeros"].shape[1:])


AWQ = Container(
    "awq",
    "AWQ",
    ("qweight", "qzeros", "scales"),
    _recognizes,
    _read,
    Needs(
        (_BITS,),
        zeros=lambda bits: (0, 2**bits - 1),
        scales=("float16", "bfloat16"),
        outputs_in_words=True,
        inputs_in_words=True,
        one_block=True,
    ),
    _write,
    _documents,
    has_head=False,
    methods=("awq", "auto-round", "intel/auto-round"),
)


_SIGNS = np.uint32(0x88888888)  # what makes codes of two's complement
_ORDERS: Mapping[str, tuple[int, ...]] = {"reorder": PLACES, "order": tuple(range(_PER_WORD))}


def _read_quark(parts: Parts, config: Config) -> BlockWeight:
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
    _read_quark,
    methods=("quark",),
)
