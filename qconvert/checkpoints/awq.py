"""4 bits in AWQ's way: AWQ (gemm), with 8 outputs in a word in the order 0, 2, 4, 6, 1, 3, 5, 7; Quark, which is read alone; and ModelOpt,
with two outputs in a byte and factors that data are multiplied by.

AWQ: `qweight` int32 [K, N / 8], `qzeros` int32 [G, N / 8], `scales` [G, N]. Quark: `weight`, `weight_zero_point` and `weight_scale`
likewise, int4 in two's complement or uint4; config.json says which, and the order (`export.pack_method`: "reorder" for AWQ's, "order" for 0
to 7). The value is scale * (q - zero point).

ModelOpt (W4A16_AWQ, W4A8_AWQ): `weight` uint8 [N / 2, K], whose lower half is output 2n, in two's complement; `weight_scale` float32 [N,
G]; perhaps `pre_quant_scale` [K]. The value is scale * q. Of W4A8_AWQ, which is read alone, kernels round it to FP8 by `weight_scale_2` and
data by `input_scale`.

Source: packing_utils.py of AutoAWQ; export/nn/modules of amd-quark; export/quant_utils.py of TensorRT Model Optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import read_activations
from qconvert.checkpoints.config import FILE_OF_MODELOPT, Config
from qconvert.checkpoints.container import Container, Documents, Needs, Parts, Written, config_of, divide_blocks
from qconvert.checkpoints.weight import BlockWeight, columns_of_words, pack, symmetric_zero_point, unpack
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
    config.require_bits(parts.layer, _BITS)
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


#: What makes codes of two's complement.
_SIGNS, _SIGNS_OF_BYTES = np.uint32(0x88888888), np.uint8(0x88)
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


_AWQ = "W4A16_AWQ"
_PRODUCER = {"name": "modelopt", "version": "0.47.0"}


def _read_modelopt(parts: Parts, config: Config) -> BlockWeight:
    packed, scales = parts.matrix("weight", "uint8"), parts.scales("weight_scale")
    if 2 * len(packed) != len(scales) or packed.shape[1] % scales.shape[1]:
        raise parts.shapes_error("weight", "weight_scale")
    halves = packed ^ _SIGNS_OF_BYTES
    codes = np.stack([halves & np.uint8(15), halves >> np.uint8(4)], axis=1).reshape(-1, packed.shape[1])
    zeros = np.full(scales.shape, symmetric_zero_point(_BITS), np.int16)
    factors, how = parts.factors(packed.shape[1]), read_activations(parts, config)
    return BlockWeight(pack(codes, _BITS), _BITS, packed.shape[1], scales, zeros, factors=factors, is_signed=True, activations=how)


def _write_modelopt(weight: BlockWeight) -> dict[str, Array]:
    codes = weight.codes ^ np.uint8(symmetric_zero_point(_BITS))
    found = {"weight": codes[0::2] | codes[1::2] << np.uint8(4), "weight_scale": weight.scale}
    return found if weight.factors is None else {**found, "pre_quant_scale": weight.factors}


def documents_of_modelopt(written: Written, algorithm: str) -> Documents:
    """What config.json says, and ModelOpt's own file, which TensorRT-LLM reads."""
    size = {"group_size": written.usual[1]} if written.usual[1] > 0 else {}
    stated = {"quant_algo": algorithm, "quant_method": "modelopt", "producer": _PRODUCER, **size, "ignore": list(written.real)}
    own = {"quant_algo": algorithm, "kv_cache_quant_algo": None, **size, "exclude_modules": list(written.real)}
    if algorithm == _AWQ:
        own |= {"has_zero_point": False, "pre_quant_scale": True}
    return {**config_of(stated), FILE_OF_MODELOPT: {"producer": _PRODUCER, "quantization": own}}


INT4_MODELOPT = Container(
    "awq-modelopt",
    "ModelOpt (W4A16_AWQ)",
    ("weight_scale", "weight", "pre_quant_scale", "weight_scale_2", "input_scale"),
    lambda parts: parts.dtype("weight") == "uint8" and parts.dtype("weight_scale") == "float32",
    _read_modelopt,
    Needs(
        (_BITS,),
        zeros=lambda bits: (symmetric_zero_point(bits), symmetric_zero_point(bits)),
        scales=("float32",),
        has_factors=True,
        outputs_in_words=True,
        one_block=True,
    ),
    _write_modelopt,
    partial(documents_of_modelopt, algorithm=_AWQ),
)
