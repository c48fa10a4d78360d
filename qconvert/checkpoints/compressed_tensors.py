"""compressed-tensors, integers: `pack-quantized` and `int-quantized`; the latter also as ModelOpt (W8A16) and Quark store it.

pack-quantized: `weight_packed` int32 [N, K * bits / 32], signed integers in a stream along the inputs, each stored with half the range
added; `weight_scale` [N, G], `weight_shape` int64 [2], and of asymmetric ones `weight_zero_point` int32 [N * bits / 32, G], packed along
the outputs. Of one scale [1], and of blocks with several outputs [N / 32, K / 32], it is int8, of the shape of the scales. int-quantized:
`weight` int8 [N, K], of 8 bits or of fewer, `weight_scale` [N, G], perhaps `weight_zero_point` int8 [N, G]; ModelOpt has scales [N], Quark
one for the whole tensor. The value is scale * (q - zero point). `input_scale` is that of data, where it is not computed at each run.
Source: compressors/pack_quantized and naive_quantized of compressed-tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import POWERS_BLOCK, Activations, read_activations
from qconvert.checkpoints.container import Container, Documents, LayerKind, Needs, Written, config_of
from qconvert.checkpoints.parts import Parts, expand_blocks
from qconvert.checkpoints.weight import BlockWeight, pack, symmetric_zero_point, symmetric_zeros, unpack, word_count, words_of_integers

_BITS = (2, 3, 4, 8)
_VERSION = "0.19.0"


def _read(parts: Parts) -> BlockWeight:
    words, scales = parts.words("weight_packed"), parts.scales("weight_scale", (1, 2))
    scales = scales.reshape(len(scales), -1)
    shape = parts.tensors.get("weight_shape")
    outputs, inputs = (int(size) for size in shape) if shape is not None and shape.shape == (2,) and shape.dtype.kind == "i" else (0, 0)
    bits = words.shape[1] * 32 // inputs if inputs > 0 else 0
    if words.shape[0] != outputs or bits not in _BITS or words.shape[1] != word_count(inputs, bits):
        raise parts.shapes_error("weight_packed", "weight_shape")
    if "weight_g_idx" in parts:
        raise parts.unsupported("weight_g_idx, the order of the inputs, is not covered", rule="act-order-not-covered")
    zeros = symmetric_zeros(scales, bits)
    if parts.dtype("weight_zero_point") == "int8":  # of the tensor, and of blocks with several outputs
        if parts.tensors["weight_zero_point"].size != scales.size:
            raise parts.shapes_error("weight_zero_point", "weight_scale")
        zeros += parts.tensors["weight_zero_point"].reshape(scales.shape)
        _require_codes(parts, zeros, bits)
    elif "weight_zero_point" in parts:
        packed = parts.words("weight_zero_point")
        if packed.shape != (word_count(len(scales), bits), scales.shape[1]):
            raise parts.shapes_error("weight_zero_point", "weight_scale")
        zeros = unpack(np.ascontiguousarray(packed.T), bits, len(scales)).T.astype(np.int16)
    scale, zero = (expand_blocks(parts, "weight_scale", numbers, (outputs, inputs)) for numbers in (scales, zeros))
    return BlockWeight(words, bits, inputs, scale, zero, is_signed=True, activations=read_activations(parts))


def _write(weight: BlockWeight) -> dict[str, Array]:
    assert weight.zero is not None
    found = {
        "weight_packed": weight.words.view(np.int32),
        "weight_scale": weight.scale,
        "weight_shape": np.array([weight.outputs, weight.inputs], np.int64),
    }
    if not weight.is_symmetric:
        packed = pack(np.ascontiguousarray(weight.zero.astype(np.uint8).T), weight.bits)
        found["weight_zero_point"] = packed.T.view(np.int32)
    return {**found, **activation_tensors(weight)}


def activation_tensors(weight: BlockWeight) -> dict[str, Array]:
    """The scale and the zero point of data, where they are not computed at each run."""
    how = weight.activations
    if how is None or how.scale is None:
        return {}
    found = {"input_global_scale" if how.scale_divides else "input_scale": np.array([how.scale], np.float32)}
    return found if how.is_symmetric else {**found, "input_zero_point": np.array([how.zero], np.int8)}


def _require_codes(parts: Parts, zeros: Array, bits: int) -> None:
    """Raise InvalidModelError if a zero point, counted from the smallest integer of so many bits, is none of these integers."""
    low, high = int(zeros.min()), int(zeros.max())
    if not 0 <= low <= high < 2**bits:
        half = symmetric_zero_point(bits)
        raise parts.invalid(
            f"integers have {bits} bits, and the zero points of the layer are {low - half} to {high - half}",
            rule="config-contradicts",
        )


def _read_int8(parts: Parts) -> BlockWeight:
    integers, bits = parts.matrix("weight", "int8"), parts.byte_bits
    half = symmetric_zero_point(bits)
    if bits < 8 and not -half <= int(integers.min()) <= int(integers.max()) < half:
        raise parts.invalid(
            f"config.json states integers of {bits} bits, and the layer has {int(integers.min())} to {int(integers.max())}",
            rule="config-contradicts",
        )
    scales = expand_blocks(parts, "weight_scale", parts.scales("weight_scale", (0, 1, 2, 4)), integers.shape)
    zeros = symmetric_zeros(scales, bits)
    found = parts.tensors.get("weight_zero_point")
    if found is not None:
        if found.dtype.kind not in "iu" or found.dtype.itemsize > 1 or not found.size:
            raise parts.tensor_error("weight_zero_point", "int8")
        expanded = expand_blocks(parts, "weight_zero_point", found, integers.shape)
        if expanded.shape != scales.shape:
            raise parts.shapes_error("weight_zero_point", "weight_scale")
        zeros += expanded
        _require_codes(parts, zeros, bits)
    factors, how = parts.factors(integers.shape[1]), read_activations(parts)
    words = words_of_integers(integers, bits)
    return BlockWeight(words, bits, integers.shape[1], scales, zeros, factors=factors, is_signed=True, activations=how)


def has_matrix_of_scales(parts: Parts) -> bool:
    """Whether scales of a layer have the axes that compressed-tensors gives them."""
    found = parts.tensors.get("weight_scale")
    return found is not None and (found.ndim == 2 or found.shape == (1,))


def _write_int8(weight: BlockWeight) -> dict[str, Array]:
    assert weight.zero is not None
    half = symmetric_zero_point(weight.bits)
    found = {"weight": (weight.codes - np.uint8(half)).view(np.int8), "weight_scale": weight.scale}
    if not weight.is_symmetric:
        found["weight_zero_point"] = (weight.zero - half).astype(np.int8)
    return {**found, **activation_tensors(weight)}


def _state_integers(kind: LayerKind, *, is_packed: bool) -> dict[str, Any]:
    """What a configuration says of the weights of a layer."""
    size: dict[str, Any] = {"strategy": "group", "group_size": kind.block}
    if kind.strategy in ("tensor", "channel"):
        size = {"strategy": "channel", "group_size": None}
    stated = {"num_bits": kind.bits, "type": "int", "symmetric": kind.is_symmetric, **size}
    # else the loader expects zero points that are not packed
    return {**stated, "zp_dtype": None if kind.is_symmetric else "torch.int8"} if is_packed else stated


def config_of_groups(written: Written, format: str, state_weights: Callable[[LayerKind], Mapping[str, Any]]) -> Documents:
    """The configuration of compressed-tensors (quantization_config.py there), with a group for layers of which it says the same."""
    groups: dict[str, list[str]] = {}
    always: dict[str, Any] = {"dynamic": False, "actorder": None, "block_structure": None, "observer": "minmax", "observer_kwargs": {}}
    for name, kind in written.layers.items():
        stated = {
            "format": format,
            "weights": {**always, **state_weights(kind)},
            "input_activations": None if kind.activations is None else _state_activations(kind.activations),
            "output_activations": None,
        }
        groups.setdefault(json.dumps(stated), []).append(name)
    ignored = sorted({*written.real, *([] if any("lm_head" in name for name in written.layers) else ["lm_head"])})
    config = {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{place}": {**json.loads(stated), "targets": ["Linear"] if len(groups) == 1 else names}
            for place, (stated, names) in enumerate(groups.items())
        },
        "ignore": ignored,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "version": _VERSION,
    }
    return config_of(config)


def _state_activations(how: Activations) -> dict[str, Any]:
    if how.has_two_levels:
        own = {"strategy": "tensor_group", "group_size": how.group, "dynamic": "local", "scale_dtype": "torch.float8_e4m3fn"}
        return {"num_bits": 4, "type": "float", "symmetric": True, **own}
    return {
        "num_bits": 4 if "4" in how.dtype[:6] else 8,
        "type": "int" if how.dtype.startswith("int") else "float",
        "strategy": how.strategy,
        "group_size": how.group or None,
        "symmetric": how.is_symmetric,
        "dynamic": how.is_dynamic,
        **({"scale_dtype": "torch.uint8"} if how.has_powers else {}),
    }


def can_state_activations(how: Activations | None) -> bool:
    """Whether a configuration of compressed-tensors can say how data are rounded: powers of two are scales of 32 values there."""
    return how is None or not (how.has_two_levels or (how.has_powers and how.group != POWERS_BLOCK))


_INPUTS = ("input_scale", "input_zero_point")
COMPRESSED = Container(
    "compressed-tensors",
    "compressed-tensors (pack-quantized)",
    ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx", *_INPUTS),
    lambda parts: "weight_packed" in parts and "weight_shape" in parts,
    _read,
    Needs(
        (4, 8),
        zeros=lambda bits: (0, 2**bits - 1),
        scales=("float16", "bfloat16", "float32"),
        inputs_in_words=True,
        has_activations=can_state_activations,
    ),
    _write,
    partial(config_of_groups, format="pack-quantized", state_weights=partial(_state_integers, is_packed=True)),
)
INT_QUANTIZED = Container(
    "compressed-tensors-int8",
    "compressed-tensors (int-quantized)",
    ("weight_scale", "weight", "weight_zero_point", *_INPUTS),
    lambda parts: parts.dtype("weight") == "int8" and has_matrix_of_scales(parts),
    _read_int8,
    replace(COMPRESSED.needs, inputs_in_words=False) if COMPRESSED.needs is not None else None,
    _write_int8,
    partial(config_of_groups, format="int-quantized", state_weights=partial(_state_integers, is_packed=False)),
)
INT8 = Container(
    "int8",
    "ModelOpt or Quark (int8)",
    (*INT_QUANTIZED.parts, "pre_quant_scale"),
    lambda parts: parts.dtype("weight") == "int8" and "weight_scale" in parts,
    _read_int8,
)
