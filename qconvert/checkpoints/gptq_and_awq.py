"""Integers of 4 bits in AWQ's way, and GPTQ.

In AWQ's way: AWQ (gemm), with 8 outputs in a word in the order 0, 2, 4, 6, 1, 3, 5, 7; Quark, which is read alone; and ModelOpt,
with two outputs in a byte and factors that data are multiplied by.

AWQ: `qweight` int32 [K, N / 8], `qzeros` int32 [G, N / 8], `scales` [G, N]. Quark: `weight`, `weight_zero_point` and `weight_scale`
likewise, int4 in two's complement or uint4; config.json says which, and the order (`export.pack_method`: "reorder" for AWQ's, "order" for 0
to 7). The value is scale * (q - zero point).

ModelOpt (W4A16_AWQ, W4A8_AWQ): `weight` uint8 [N / 2, K], whose lower half is output 2n, in two's complement; `weight_scale` float32 [N,
G]; perhaps `pre_quant_scale` [K]. The value is scale * q. Of W4A8_AWQ, which is read alone, kernels round it to FP8 by `weight_scale_2` and
data by `input_scale`.

Source: packing_utils.py of AutoAWQ; export/nn/modules of amd-quark; export/quant_utils.py of TensorRT Model Optimizer.

GPTQ: codes in a stream down the inputs, zero points along the outputs, which version 1 stores less one.

`qweight` int32 [K * bits / 32, N], `qzeros` int32 [G, N * bits / 32], `scales` [G, N], `g_idx` int32 [K]: the group of each input. The
value is scale * (q - zero point). Source: qlinear_cuda.py of AutoGPTQ, BaseQuantLinear of GPTQModel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import read_activations
from qconvert.checkpoints.config import FILE_OF_MODELOPT
from qconvert.checkpoints.container import Container, Documents, Needs, Written, config_of, is_head
from qconvert.checkpoints.parts import Parts, divide_blocks
from qconvert.checkpoints.weight import WORD, BlockWeight, columns_of_words, pack, symmetric_zero_point, symmetric_zeros, unpack

_AWQ_BITS, _PER_WORD = 4, 8
#: Which output each nibble of a word is of.
_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
#: Where in a word the nibbles of its eight outputs stand.
PLACES = tuple(_OUTPUTS.index(output) for output in range(_PER_WORD))


def unpacked_zeros(packed: Array, places: Sequence[int] = PLACES) -> Array:
    """The zero points of all outputs, eight in a word at these places: uint32 [G, N / 8] -> int16 [N, G]."""
    each = unpack(packed, _AWQ_BITS, packed.shape[1] * _PER_WORD).reshape(*packed.shape, _PER_WORD)
    return each[..., places].reshape(packed.shape[0], -1).T.astype(np.int16)


def _read_awq(parts: Parts) -> BlockWeight:
    words, packed, scales = parts.words("qweight"), parts.words("qzeros"), parts.scales("scales")
    groups, outputs = scales.shape
    inputs = words.shape[0]
    block = parts.block_with_rest(inputs, groups) or inputs // groups
    if words.shape[1] * _PER_WORD != outputs or packed.shape != (groups, words.shape[1]) or not block or -(-inputs // block) != groups:
        raise parts.shapes_error("qweight", "qzeros", "scales")
    if inputs % _PER_WORD:
        raise parts.shapes_error("qweight")
    parts.require_bits(_AWQ_BITS)
    parts.require_block(block, inputs)
    parts.require_packing("version", ("gemm",))
    made = columns_of_words(words, columns=PLACES, is_row_major=not parts.in_columns)
    scale, zero = (divide_blocks(numbers, inputs, block) for numbers in (scales.T, unpacked_zeros(packed)))
    return BlockWeight(made, _AWQ_BITS, inputs, scale, zero)


def _write_awq(weight: BlockWeight) -> dict[str, Array]:
    assert weight.zero is not None
    zeros = weight.zero.astype(np.uint8).T.reshape(weight.scale.shape[1], -1, _PER_WORD)[..., _OUTPUTS]
    return {
        "qweight": columns_of_words(weight.words, rows=_OUTPUTS).view(np.int32),
        "qzeros": pack(np.ascontiguousarray(zeros.reshape(len(zeros), -1)), _AWQ_BITS).view(np.int32),
        "scales": weight.scale.T,
    }


def _documents_of_awq(written: Written) -> Documents:
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


def _recognizes_awq(parts: Parts) -> bool:
    if not ("qweight" in parts and "qzeros" in parts and "scales" in parts):
        return False
    return bool(parts.tensors["qweight"].shape[1:] == parts.tensors["qzeros"].shape[1:])


AWQ = Container(
    "awq",
    "AWQ",
    ("qweight", "qzeros", "scales"),
    _recognizes_awq,
    _read_awq,
    Needs(
        (_AWQ_BITS,),
        zeros=lambda bits: (0, 2**bits - 1),
        scales=("float16", "bfloat16"),
        outputs_in_words=True,
        inputs_in_words=True,
        one_block=True,
    ),
    _write_awq,
    _documents_of_awq,
    has_head=False,
    methods=("awq", "auto-round", "intel/auto-round"),
)


#: What makes codes of two's complement.
_SIGNS, _SIGNS_OF_BYTES = np.uint32(0x88888888), np.uint8(0x88)
_ORDERS: Mapping[str, tuple[int, ...]] = {"reorder": PLACES, "order": tuple(range(_PER_WORD))}


def _read_quark(parts: Parts) -> BlockWeight:
    words, scales, packed = parts.words("weight"), parts.scales("weight_scale"), parts.words("weight_zero_point")
    groups, outputs = scales.shape
    if words.shape[1] * _PER_WORD != outputs or packed.shape != (groups, words.shape[1]) or words.shape[0] % (groups * _PER_WORD):
        raise parts.shapes_error("weight", "weight_scale", "weight_zero_point")
    parts.require_block(words.shape[0] // groups, words.shape[0])
    is_signed, places = _read_packing(parts)
    if is_signed:
        words, packed = words ^ _SIGNS, packed ^ _SIGNS
    turned = columns_of_words(words, columns=places, is_row_major=not parts.in_columns)
    zeros, how = unpacked_zeros(packed, places), read_activations(parts)
    return BlockWeight(turned, _AWQ_BITS, words.shape[0], scales.T, zeros, is_signed=is_signed, activations=how)


def _read_packing(parts: Parts) -> tuple[bool, tuple[int, ...]]:
    """Whether the integers are signed, and where the nibbles of eight outputs stand."""
    weight: Any = parts.quark.get("weight")
    dtype = weight.get("dtype") if isinstance(weight, dict) else None
    export = parts.config.stated.get("export")
    order = str(export.get("pack_method", "reorder")) if isinstance(export, dict) else "reorder"
    if dtype not in ("int4", "uint4") or order not in _ORDERS:
        raise parts.unsupported(
            f"config.json states weights of {dtype!r} in the order {order!r}; int4 or uint4 in the order 'reorder' or 'order' are read",
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


_W4A16_AWQ = "W4A16_AWQ"
_PRODUCER = {"name": "modelopt", "version": "0.47.0"}


def _read_modelopt(parts: Parts) -> BlockWeight:
    packed, scales = parts.matrix("weight", "uint8"), parts.scales("weight_scale")
    if 2 * len(packed) != len(scales) or packed.shape[1] % scales.shape[1]:
        raise parts.shapes_error("weight", "weight_scale")
    halves = packed ^ _SIGNS_OF_BYTES
    codes = np.stack([halves & np.uint8(15), halves >> np.uint8(4)], axis=1).reshape(-1, packed.shape[1])
    zeros = symmetric_zeros(scales, _AWQ_BITS)
    factors, how = parts.factors(packed.shape[1]), read_activations(parts)
    return BlockWeight(pack(codes, _AWQ_BITS), _AWQ_BITS, packed.shape[1], scales, zeros, factors=factors, is_signed=True, activations=how)


def _write_modelopt(weight: BlockWeight) -> dict[str, Array]:
    codes = weight.codes ^ np.uint8(symmetric_zero_point(_AWQ_BITS))
    found = {"weight": codes[0::2] | codes[1::2] << np.uint8(4), "weight_scale": weight.scale}
    return found if weight.factors is None else {**found, "pre_quant_scale": weight.factors}


def documents_of_modelopt(written: Written, algorithm: str) -> Documents:
    """What config.json says, and ModelOpt's own file, which TensorRT-LLM reads."""
    size = {"group_size": written.usual[1]} if written.usual[1] > 0 else {}
    stated = {"quant_algo": algorithm, "quant_method": "modelopt", "producer": _PRODUCER, **size, "ignore": list(written.real)}
    own = {"quant_algo": algorithm, "kv_cache_quant_algo": None, **size, "exclude_modules": list(written.real)}
    if algorithm == _W4A16_AWQ:
        own |= {"has_zero_point": False, "pre_quant_scale": True}
    return {**config_of(stated), FILE_OF_MODELOPT: {"producer": _PRODUCER, "quantization": own}}


INT4_MODELOPT = Container(
    "awq-modelopt",
    "ModelOpt (W4A16_AWQ)",
    ("weight_scale", "weight", "pre_quant_scale", "weight_scale_2", "input_scale"),
    lambda parts: parts.dtype("weight") == "uint8" and parts.dtype("weight_scale") == "float32",
    _read_modelopt,
    Needs(
        (_AWQ_BITS,),
        zeros=lambda bits: (symmetric_zero_point(bits), symmetric_zero_point(bits)),
        scales=("float32",),
        has_factors=True,
        outputs_in_words=True,
        one_block=True,
    ),
    _write_modelopt,
    partial(documents_of_modelopt, algorithm=_W4A16_AWQ),
)


_GPTQ_BITS = (2, 3, 4, 8)


def _read_gptq(parts: Parts) -> BlockWeight:
    words, packed, scales = parts.words("qweight"), parts.words("qzeros"), parts.scales("scales")
    groups, outputs = scales.shape
    bits = packed.shape[1] * WORD // outputs
    inputs = words.shape[0] * WORD // max(bits, 1)
    if words.shape[1] != outputs or packed.shape[0] != groups or bits not in _GPTQ_BITS or packed.shape[1] * WORD != outputs * bits:
        raise parts.shapes_error("qweight", "qzeros", "scales")
    block = parts.block_with_rest(inputs, groups) or inputs // groups
    if not block or -(-inputs // block) != groups:
        raise parts.shapes_error("qweight", "scales")
    parts.require_bits(bits)
    parts.require_block(block, inputs)
    parts.require_packing("checkpoint_format", ("gptq", "gptq_v2"))
    zeros = unpack(packed, bits, outputs).astype(np.int16)
    if parts.config.zero_points_are_less_by_one:
        if (zeros == 2**bits - 1).any():
            raise parts.unsupported(
                f"a zero point of GPTQ v1 is stored as {2**bits - 1}: writers of 0 less 1 differ in what they leave of its neighbours",
                remedy="Save the checkpoint again as gptq_v2.",
                rule="zero-point-ambiguous",
            )
        zeros += 1
    order = _groups(parts, inputs, groups, block)
    if order is not None and inputs % block:
        raise parts.unsupported(
            f"inputs are in another order than their blocks (act-order), the last of which has {inputs % block} of {block} inputs",
            rule="act-order-not-covered",
        )
    scale, zero = (divide_blocks(numbers.T, inputs, block) for numbers in (scales, zeros))
    return BlockWeight(words.T, bits, inputs, scale, zero, groups=order)


def _groups(parts: Parts, inputs: int, groups: int, block: int) -> Array | None:
    """The group of each input; None where inputs are in their order."""
    found = parts.tensors.get("g_idx")
    if found is None:
        return None
    is_fit = found.dtype.kind in "iu" and found.shape == (inputs,) and 0 <= int(found.min()) <= int(found.max()) < groups
    if not is_fit or not np.array_equal(np.bincount(found, minlength=groups), np.bincount(np.arange(inputs) // block)):
        raise parts.invalid(
            f"g_idx does not give each of {groups} groups {inputs / groups:g} of {inputs} inputs", rule="wrong-groups",
        )  # fmt: skip
    return None if (found[1:] >= found[:-1]).all() else found.astype(np.int32)


def _write_gptq(weight: BlockWeight, less: int) -> dict[str, Array]:
    assert weight.zero is not None
    groups = weight.groups if weight.groups is not None else np.arange(weight.inputs, dtype=np.int32) // weight.block
    zeros = np.ascontiguousarray((weight.zero - less).T).astype(np.uint8)
    return {
        "qweight": weight.words.T.view(np.int32),
        "qzeros": pack(zeros, weight.bits).view(np.int32),
        "scales": weight.scale.T,
        "g_idx": groups.astype(np.int32),
    }


def _documents_of_gptq(written: Written, version: str) -> Documents:
    bits, block = written.usual
    others: dict[str, Any] = {
        f"+:^{re.escape(name)}$": {"bits": other_bits, "group_size": other} for name, (other_bits, other) in written.unusual().items()
    }
    others |= {f"-:^{re.escape(name)}$": {} for name in written.real if not is_head(name)}  # GPTQModel: not quantized
    kept_real = [name for name in written.real if name.rpartition(".")[2] == "lm_head"]
    stated = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": block,
        "desc_act": written.has_groups,
        "sym": written.is_symmetric,
        "checkpoint_format": version,
        "lm_head": not kept_real and any(name.rpartition(".")[2] == "lm_head" for name in written.layers),
        "pack_dtype": "int32",
        **({"dynamic": others} if others else {}),
    }
    return {**config_of(stated), "quantize_config.json": stated}  # AutoGPTQ's own file


def _recognizes_gptq(parts: Parts) -> bool:
    """AWQ has as many columns of integers as of zero points."""
    return "qweight" in parts and "scales" in parts and not ("qzeros" in parts and _columns(parts, "qweight") == _columns(parts, "qzeros"))


def _columns(parts: Parts, name: str) -> int:
    return int(parts.tensors[name].size // max(len(parts.tensors[name]), 1)) if parts.tensors[name].ndim else 0


def _make_container(name: str, title: str, version: str, recognizes: Callable[[Parts], bool], less: int) -> Container:
    return Container(
        name,
        title,
        ("qweight", "qzeros", "scales", "g_idx"),
        recognizes,
        _read_gptq,
        Needs(_GPTQ_BITS, zeros=lambda bits: (less, 2**bits - 1), has_groups=True, outputs_in_words=True, inputs_in_words=True),
        partial(_write_gptq, less=less),
        partial(_documents_of_gptq, version=version),
        in_columns=True,
        methods=("gptq", "auto-round", "intel/auto-round"),
    )


GPTQ = _make_container("gptq", "GPTQ v1", "gptq", _recognizes_gptq, 1)
GPTQ_V2 = _make_container("gptq-v2", "GPTQ v2", "gptq_v2", lambda parts: False, 0)
