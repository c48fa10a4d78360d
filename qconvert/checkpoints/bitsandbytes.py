"""bitsandbytes: 4-bit codes with a table of their values (nf4, fp4), and int8 with a scale for each output; both are read alone.

4 bits: `weight` uint8 [N * K / 2, 1], the upper half first, `weight.absmax` [N * K / 64], one for each block along the flattened weight,
`weight.quant_map` float32 [16] and the JSON `weight.quant_state.bitsandbytes__nf4`. With nested quantization absmax are uint8, and
`weight.nested_absmax`, `weight.nested_quant_map` and an offset in the JSON make float32 of them. int8: `weight` int8 [N, K] and `SCB` [N];
the value is (q * SCB) * (1 / 127), each product rounded to float32. Source: functional.py and nn/modules.py of bitsandbytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.container import Container, Parts
from qconvert.checkpoints.weight import BlockWeight, symmetric_zero_point, words_of_bytes
from qconvert.files.documents import json_of

_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_LARGEST = 10_000
_INVERSE: Array = np.array([[1 / 127]], np.float32)


def _read(parts: Parts, config: Config) -> BlockWeight:
    state = _state(parts)
    shape, block = state.get("shape"), state.get("blocksize")
    sizes = [size for size in shape if type(size) is int and 0 < size < 2**31] if isinstance(shape, list) else []
    if len(sizes) != 2 or type(block) is not int or block < 1:
        raise parts.invalid("the quant_state has no shape of 2 axes or no blocksize", rule="damaged-config")
    outputs, inputs = sizes
    packed, table = parts.tensors["weight"], parts.tensors.get("weight.quant_map")
    if packed.dtype != np.uint8 or packed.size * 2 != math.prod(sizes):
        raise parts.shapes_error("weight")
    if table is None or table.shape != (16,) or table.dtype != np.float32 or not np.isfinite(table).all():
        raise parts.tensor_error("weight.quant_map", "float32 [16]")
    if inputs % 8:
        raise parts.unsupported(
            f"rows of {inputs} inputs are no whole number of words, which is not covered", rule="blocks-not-covered",
        )  # fmt: skip
    scale = _absmax(parts, state)
    if scale.size != -(-outputs * inputs // block):
        raise parts.shapes_error("weight", "weight.absmax")
    divisor = math.gcd(block, inputs)  # a block that begins in one row and ends in the next becomes several of one row
    scale = np.repeat(scale, block // divisor)[: outputs * inputs // divisor]
    turned = packed.reshape(outputs, inputs // 2)
    words = np.ascontiguousarray(turned >> np.uint8(4) | turned << np.uint8(4)).view("<u4")
    return BlockWeight(words, 4, inputs, scale.reshape(outputs, -1), table=table)


def _state(parts: Parts) -> dict[str, Any]:
    stored = next((parts.tensors[name] for name in _STATES if name in parts), None)
    if stored is None or stored.dtype != np.uint8 or stored.size > _LARGEST:
        raise parts.tensor_error(_STATES[0], "a JSON text of bytes")
    found = json_of(stored.tobytes(), "the quant_state")
    if not isinstance(found, dict):
        raise parts.tensor_error(_STATES[0], "a JSON object")
    return found


def _absmax(parts: Parts, state: dict[str, Any]) -> Array:
    """The scales, float32; those of the second level are multiplied out, as bitsandbytes does before each product."""
    found = parts.tensors.get("weight.absmax")
    if found is None or found.dtype not in (np.float32, np.uint8):
        raise parts.tensor_error("weight.absmax", "float32 or uint8")
    if found.dtype == np.uint8:
        table, outer = parts.tensors.get("weight.nested_quant_map"), parts.tensors.get("weight.nested_absmax")
        block, offset = state.get("nested_blocksize"), state.get("nested_offset")
        if table is None or table.shape != (256,) or outer is None or outer.dtype != np.float32 or type(block) is not int or block < 1:
            raise parts.tensor_error("weight.nested_quant_map", "float32 [256] with nested_absmax and nested_blocksize")
        if outer.size != -(-found.size // block) or not isinstance(offset, int | float):
            raise parts.shapes_error("weight.absmax", "weight.nested_absmax")
        inner = table.astype(np.float32)[found.reshape(-1)]
        found = inner * np.repeat(outer.reshape(-1), block)[: found.size] + np.float32(offset)
    parts.require_finite("weight.absmax", found)
    return np.asarray(found.reshape(-1))


def _read_int8(parts: Parts, config: Config) -> BlockWeight:
    integers, scales = parts.matrix("weight", "int8"), parts.tensors["SCB"]
    if scales.dtype != np.float32 or scales.size != len(integers):
        raise parts.tensor_error("SCB", f"float32 [{len(integers)}]")
    parts.require_finite("SCB", scales)
    if "weight_format" in parts and parts.tensors["weight_format"].any():
        raise parts.unsupported("weight_format is not 0: the integers are not in rows, which is not covered", rule="blocks-not-covered")
    scale = scales.reshape(-1, 1)
    zeros = np.full(scale.shape, symmetric_zero_point(8), np.int16)
    words = words_of_bytes(integers.view(np.uint8) ^ np.uint8(0x80))
    return BlockWeight(words, 8, integers.shape[1], scale, zeros, outer=_INVERSE, outer_is_last=True, is_signed=True)


BNB_4BIT = Container(
    "bitsandbytes",
    "bitsandbytes (nf4 or fp4)",
    ("weight.absmax", "weight", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", *_STATES),
    lambda parts: "weight.absmax" in parts and "weight" in parts,
    _read,
    methods=("bitsandbytes",),
)
BNB_INT8 = Container(
    "bitsandbytes-int8",
    "bitsandbytes (int8)",
    ("SCB", "weight", "weight_format"),
    lambda parts: "SCB" in parts and parts.dtype("weight") == "int8",
    _read_int8,
    note="bitsandbytes rounds the data of int8 layers to 8 bits at each run, which is not carried over: they stay floats",
    methods=("bitsandbytes",),
)
