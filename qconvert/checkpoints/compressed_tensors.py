"""compressed-tensors, integers: `pack-quantized` and `int-quantized`, of weights alone.

pack-quantized: `weight_packed` int32 [N, K * bits / 32], signed integers in a stream along the inputs, each stored with half the range
added; `weight_scale` [N, G], `weight_shape` int64 [2], and of asymmetric ones `weight_zero_point` int32 [N * bits / 32, G], packed along
the outputs. int-quantized: `weight` int8 [N, K], `weight_scale` [N, G]. The value is scale * (q - zero point). Source: pack_quantized.py
and naive_quantized.py of compressed-tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.container import Container, Needs, Parts, Written
from qconvert.checkpoints.weight import BlockWeight, pack, symmetric_zero_point, to_row_major, unpack, word_count
from qconvert.errors import UnsupportedError

__all__ = ["COMPRESSED", "INT_QUANTIZED", "config_of_groups", "words_of_int8"]


_BITS = (2, 3, 4, 8)
_VERSION = "0.19.0"


def _read(parts: Parts, config: Config) -> BlockWeight:
    words, scales = parts.words("weight_packed"), parts.scales("weight_scale")
    shape = parts.tensors.get("weight_shape")
    outputs, inputs = (int(size) for size in shape) if shape is not None and shape.shape == (2,) and shape.dtype.kind == "i" else (0, 0)
    bits = words.shape[1] * 32 // inputs if inputs > 0 else 0
    if words.shape[0] != outputs or bits not in _BITS or words.shape[1] != word_count(inputs, bits):
        raise parts.shapes_error("weight_packed", "weight_shape")
    if scales.shape[0] != outputs or inputs % scales.shape[1]:
        raise parts.shapes_error("weight_packed", "weight_scale")
    if "weight_g_idx" in parts:
        raise UnsupportedError(
            "weight_g_idx, the order of the inputs, is not covered", where=repr(parts.layer), rule="act-order-not-covered"
        )
    config.refuse_rounded_data(parts.layer)
    config.require_block(parts.layer, inputs // scales.shape[1], inputs)
    zeros = np.full(scales.shape, symmetric_zero_point(bits), np.int16)
    if "weight_zero_point" in parts:
        packed = parts.words("weight_zero_point")
        if packed.shape != (word_count(outputs, bits), scales.shape[1]):
            raise parts.shapes_error("weight_zero_point", "weight_scale")
        zeros = unpack(np.ascontiguousarray(packed.T), bits, outputs).T.astype(np.int16)
    return BlockWeight(words, bits, inputs, scales, zeros, is_signed=True)


def _write(weight: BlockWeight) -> dict[str, Array]:
    assert weight.zero is not None
    found = {
        "weight_packed": to_row_major(weight.words).view(np.int32),
        "weight_scale": np.ascontiguousarray(weight.scale),
        "weight_shape": np.array([weight.outputs, weight.inputs], np.int64),
    }
    if not weight.is_symmetric:
        packed = pack(np.ascontiguousarray(weight.zero.astype(np.uint8).T), weight.bits)
        found["weight_zero_point"] = np.ascontiguousarray(packed.T).view(np.int32)
    return found


def _config(written: Written) -> dict[str, Any]:
    kinds: dict[tuple[int, int, bool], list[str]] = {}
    for name, kind in written.layers.items():
        kinds.setdefault(kind, []).append(name)
    groups = []
    for (bits, block, symmetric), names in kinds.items():
        targets = ["Linear"] if len(kinds) == 1 else names
        size = {"strategy": "channel", "group_size": None} if block < 0 else {"strategy": "group", "group_size": block}
        weights: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": symmetric, **size}
        weights["zp_dtype"] = None if symmetric else "torch.int8"  # else the loader expects zero points that are not packed
        groups.append({"format": "pack-quantized", "targets": targets, "weights": weights})
    return config_of_groups("pack-quantized", groups, written)


def config_of_groups(format: str, groups: list[dict[str, Any]], written: Written) -> dict[str, Any]:
    """The configuration of compressed-tensors (quantization_config.py there)."""
    always: dict[str, Any] = {"dynamic": False, "actorder": None, "block_structure": None, "observer": "minmax", "observer_kwargs": {}}
    full = [{**group, "weights": {**always, **group["weights"]}, "input_activations": None, "output_activations": None} for group in groups]
    ignored = sorted({*written.real, *([] if any("lm_head" in name for name in written.layers) else ["lm_head"])})
    stated = {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {f"group_{place}": group for place, group in enumerate(full)},
        "ignore": ignored,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "version": _VERSION,
    }
    return {"quantization_config": stated}


def words_of_int8(integers: Array) -> Array:
    """int8 [N, K] as a stream of words of codes without a sign; K is filled up to a multiple of 4."""
    codes = integers.view(np.uint8) ^ np.uint8(0x80)
    return pack(codes, 8) if codes.shape[1] % 4 else np.ascontiguousarray(codes).view("<u4")


def _read_int8(parts: Parts, config: Config) -> BlockWeight:
    integers, scales = parts.matrix("weight", "int8"), parts.scales("weight_scale")
    if scales.shape[0] != len(integers) or integers.shape[1] % scales.shape[1]:
        raise parts.shapes_error("weight", "weight_scale")
    config.refuse_rounded_data(parts.layer)
    config.require_block(parts.layer, integers.shape[1] // scales.shape[1], integers.shape[1])
    zeros = np.full(scales.shape, symmetric_zero_point(8), np.int16)
    if "weight_zero_point" in parts:
        found = parts.matrix("weight_zero_point", "int8")
        if found.shape != scales.shape:
            raise parts.shapes_error("weight_zero_point", "weight_scale")
        zeros += found
    return BlockWeight(words_of_int8(integers), 8, integers.shape[1], scales, zeros, is_signed=True)


COMPRESSED = Container(
    "compressed-tensors",
    "compressed-tensors (pack-quantized)",
    ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"),
    lambda parts: "weight_packed" in parts and "weight_shape" in parts,
    _read,
    Needs((4, 8), zeros=lambda bits: (0, 2**bits - 1), scales=("float16", "bfloat16", "float32"), inputs_in_words=True),
    _write,
    _config,
)
INT_QUANTIZED = Container(
    "compressed-tensors-int8",
    "compressed-tensors (int-quantized)",
    ("weight_scale", "weight", "weight_zero_point"),
    lambda parts: parts.dtype("weight") == "int8" and "weight_scale" in parts,
    _read_int8,
)
