"""GPTQ: codes in a stream down the inputs, zero points along the outputs, which version 1 stores less one.

`qweight` int32 [K * bits / 32, N], `qzeros` int32 [G, N * bits / 32], `scales` [G, N], `g_idx` int32 [K]: the group of each input. The
value is scale * (q - zero point). Source: qlinear_cuda.py of AutoGPTQ, BaseQuantLinear of GPTQModel.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.container import Container, Documents, Needs, Parts, Written, config_of, divide_blocks, is_head
from qconvert.checkpoints.weight import WORD, BlockWeight, pack, unpack

_BITS = (2, 3, 4, 8)


def _read(parts: Parts, config: Config) -> BlockWeight:
    words, packed, scales = parts.words("qweight"), parts.words("qzeros"), parts.scales("scales")
    groups, outputs = scales.shape
    bits = packed.shape[1] * WORD // outputs
    inputs = words.shape[0] * WORD // max(bits, 1)
    if words.shape[1] != outputs or packed.shape[0] != groups or bits not in _BITS or packed.shape[1] * WORD != outputs * bits:
        raise parts.shapes_error("qweight", "qzeros", "scales")
    block = config.block_with_rest(parts.layer, inputs, groups) or inputs // groups
    if not block or -(-inputs // block) != groups:
        raise parts.shapes_error("qweight", "scales")
    config.require_bits(parts.layer, bits)
    config.require_block(parts.layer, block, inputs)
    config.require_packing(parts.layer, "checkpoint_format", ("gptq", "gptq_v2"))
    zeros = unpack(packed, bits, outputs).astype(np.int16)
    if config.zero_points_are_less_by_one:
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


def _write(weight: BlockWeight, less: int) -> dict[str, Array]:
    assert weight.zero is not None
    groups = weight.groups if weight.groups is not None else np.arange(weight.inputs, dtype=np.int32) // weight.block
    zeros = np.ascontiguousarray((weight.zero - less).T).astype(np.uint8)
    return {
        "qweight": weight.words.T.view(np.int32),
        "qzeros": pack(zeros, weight.bits).view(np.int32),
        "scales": weight.scale.T,
        "g_idx": groups.astype(np.int32),
    }


def _documents(written: Written, version: str) -> Documents:
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


def _recognizes(parts: Parts) -> bool:
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
        _read,
        Needs(_BITS, zeros=lambda bits: (less, 2**bits - 1), has_groups=True, outputs_in_words=True, inputs_in_words=True),
        partial(_write, less=less),
        partial(_documents, version=version),
        in_columns=True,
        methods=("gptq", "auto-round", "intel/auto-round"),
    )


GPTQ = _make_container("gptq", "GPTQ v1", "gptq", _recognizes, 1)
GPTQ_V2 = _make_container("gptq-v2", "GPTQ v2", "gptq_v2", lambda parts: False, 0)
