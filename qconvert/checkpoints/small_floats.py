"""Floats of 8 and of 4 bits.

FP8 (E4M3): a byte for each weight, and a scale for the tensor, each output, blocks of inputs, or blocks of 128 x 128.

`weight` float8_e4m3fn [N, K]. compressed-tensors (float-quantized): `weight_scale` [1], [N, 1], [N, G] or [N / 128, K / 128]; ModelOpt and
Quark: [], [N] or [N / 128, 1, K / 128, 1]; DeepSeek: `weight_scale_inv` [N / 128, K / 128], which is what a code is multiplied by, as the
others are; MXFP8: uint8 [N, K / 32], powers of two (E8M0). The value is scale * code. `input_scale` (`activation_scale`) is that of data,
where it is not computed at each run. Source: compressors/naive_quantized and mxfp8 of compressed-tensors; export/quant_utils.py of TensorRT
Model Optimizer; integrations/finegrained_fp8.py of transformers.

FP4 (E2M1) in blocks: NVFP4 and MXFP4, by compressed-tensors and ModelOpt, and of gpt-oss; two codes in a byte, the lower half first.

Of NVFP4 a block of 16 has a scale of E4M3, and the tensor one of float32, by which compressed-tensors divides (`weight_global_scale`) and
ModelOpt multiplies (`weight_scale_2`); of MXFP4 a block of 32 has a power of two (E8M0). gpt-oss has the experts of a layer in one tensor
each, in MXFP4, which is read alone: `experts.down_proj_blocks` uint8 [E, N, G, 16], `experts.down_proj_scales` uint8 [E, N, G], and
`experts.down_proj_bias` [E, N]. Rows of `experts.gate_up_proj` are those of two layers in turns, the gate first. Source:
compressed-tensors, compressors/nvfp4 and mxfp4; export/quant_utils.py of TensorRT Model Optimizer; OCP Microscaling Formats 1.0;
integrations/mxfp4.py and models/gpt_oss of transformers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import Activations, read_activations
from qconvert.checkpoints.compressed_tensors import activation_tensors, can_state_activations, config_of_groups, has_matrix_of_scales
from qconvert.checkpoints.container import Container, Documents, LayerKind, Needs, Written, config_of
from qconvert.checkpoints.gptq_and_awq import documents_of_modelopt
from qconvert.checkpoints.parts import Parts, expand_blocks
from qconvert.checkpoints.safetensors import Checkpoint
from qconvert.checkpoints.weight import E2M1, E4M3, BlockWeight, dtype_of, to_row_major, words_of_bytes
from qconvert.errors import InvalidModelError, UnsupportedError

_FP8_BITS, _SQUARE, _MODELOPT = 8, 128, "FP8"
_FLOATS = ("float16", "bfloat16", "float32")


def refuse_nan_codes(parts: Parts, codes: Array) -> None:
    """Raise InvalidModelError where one of the two codes that stand for no number is a weight."""
    if ((codes & np.uint8(127)) == 127).any():
        raise parts.invalid("weight has codes of FP8 that stand for no number (NaN)", rule="weights-not-finite")


def float8_codes(parts: Parts, name: str) -> Array:
    """The codes of a matrix of FP8, all of which stand for numbers."""
    codes = parts.matrix(name, "float8_e4m3fn").view(np.uint8)
    refuse_nan_codes(parts, codes)
    return codes


def _read_fp8(parts: Parts) -> BlockWeight:
    codes = float8_codes(parts, "weight")
    name = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
    if parts.dtype(name) == "uint8":
        scale = parts.small_scales(name, "float8_e8m0fnu")
        if scale.shape[0] != len(codes) or codes.shape[1] % scale.shape[1]:
            raise parts.shapes_error("weight", name)
        parts.require_block(codes.shape[1] // scale.shape[1], codes.shape[1])
    else:
        scale = expand_blocks(parts, name, parts.scales(name, (0, 1, 2, 4)), codes.shape)
    return BlockWeight(words_of_bytes(codes), _FP8_BITS, codes.shape[1], scale, table=E4M3, activations=read_activations(parts))


def _codes(weight: BlockWeight) -> Array:
    return np.ascontiguousarray(weight.codes).view(dtype_of("float8_e4m3fn"))


def _write(weight: BlockWeight) -> dict[str, Array]:
    first = {"tensor": weight.scale[0, :1], "block": weight.scale[::_SQUARE]}
    scale = first.get(weight.strategy, weight.scale)
    return {"weight": _codes(weight), "weight_scale": scale, **activation_tensors(weight)}


def _state_weights(kind: LayerKind) -> dict[str, Any]:
    stated: dict[str, Any] = {"num_bits": _FP8_BITS, "type": "float", "strategy": kind.strategy, "symmetric": True}
    if kind.strategy == "block":
        stated["block_structure"] = [_SQUARE, _SQUARE]
    return {**stated, "group_size": kind.block if kind.strategy == "group" else None}


def _write_modelopt(weight: BlockWeight) -> dict[str, Array]:
    assert weight.activations is not None and weight.activations.scale is not None
    found = {"weight": _codes(weight), "weight_scale": weight.scale[0, 0].reshape(())}
    return {**found, "input_scale": np.array(weight.activations.scale, np.float32)}


def _write_squares(weight: BlockWeight) -> dict[str, Array]:
    return {"weight": _codes(weight), "weight_scale_inv": weight.scale[::_SQUARE]}


def _state_squares(written: Written) -> Documents:
    has_powers = any(kind.activations is not None and kind.activations.has_powers for kind in written.layers.values())
    stated = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [_SQUARE, _SQUARE],
        "modules_to_not_convert": list(written.real) or None,
        **({"scale_fmt": "ue8m0"} if has_powers else {}),
    }
    return config_of(stated)


def _write_powers(weight: BlockWeight) -> dict[str, Array]:
    return {"weight": _codes(weight), "weight_scale": weight.scale.view(np.uint8), **activation_tensors(weight)}


def _state_powers(kind: LayerKind) -> dict[str, Any]:
    size = {"strategy": "group", "group_size": kind.block, "scale_dtype": "torch.uint8"}
    return {"num_bits": _FP8_BITS, "type": "float", "symmetric": True, **size}


def _is_fp8(parts: Parts) -> bool:
    return parts.dtype("weight") == "float8_e4m3fn"


def _rounds_groups(how: Activations | None) -> bool:
    return how is not None and how.is_dynamic and (how.dtype, how.strategy, how.group) == ("float8e4m3fn", "group", _SQUARE)


def _rounds_by_one_scale(how: Activations | None) -> bool:
    return how is not None and how.scale is not None and how.is_symmetric and how.dtype == "float8e4m3fn"


FLOAT_QUANTIZED = Container(
    "compressed-tensors-fp8",
    "compressed-tensors (float-quantized)",
    ("weight_scale", "weight", "input_scale"),
    lambda parts: _is_fp8(parts) and parts.dtype("weight_scale") != "uint8" and has_matrix_of_scales(parts),
    _read_fp8,
    Needs((_FP8_BITS,), E4M3, scales=_FLOATS, has_activations=can_state_activations),
    _write,
    partial(config_of_groups, format="float-quantized", state_weights=_state_weights),
)
FP8_MODELOPT = Container(
    "fp8-modelopt",
    "ModelOpt or Quark (FP8)",
    ("weight_scale", "weight", "input_scale"),
    lambda parts: _is_fp8(parts) and "weight_scale" in parts and parts.dtype("weight_scale") != "uint8",
    _read_fp8,
    Needs((_FP8_BITS,), E4M3, scales=("float32",), outputs=0, has_activations=_rounds_by_one_scale),
    _write_modelopt,
    partial(documents_of_modelopt, algorithm=_MODELOPT),
)
FP8 = Container(
    "fp8",
    "FP8 of DeepSeek and Qwen",
    ("weight_scale_inv", "weight", "activation_scale", "input_scale"),
    lambda parts: _is_fp8(parts) and "weight_scale_inv" in parts,
    _read_fp8,
    Needs((_FP8_BITS,), E4M3, scales=("float32",), blocks=(_SQUARE,), outputs=_SQUARE, has_activations=_rounds_groups),
    _write_squares,
    _state_squares,
)
MXFP8 = Container(
    "mxfp8",
    "compressed-tensors or ModelOpt (mxfp8)",
    ("weight_scale", "weight", "input_scale"),
    lambda parts: _is_fp8(parts) and parts.dtype("weight_scale") == "uint8",
    _read_fp8,
    Needs((_FP8_BITS,), E4M3, scales=("float8_e8m0fnu",), blocks=(32,), has_activations=can_state_activations),
    _write_powers,
    partial(config_of_groups, format="mxfp8-quantized", state_weights=_state_powers),
)


_FP4_BITS, _PER_WORD = 4, 8
#: Inputs of a block; ModelOpt has NVFP4 with 32 too.
_NVFP4_BLOCKS, _MXFP4_BLOCKS = (16, 32), (32,)
_E4M3, _E8M0 = "float8_e4m3fn", "float8_e8m0fnu"


def _words(parts: Parts, name: str) -> Array:
    packed = parts.matrix(name, "uint8")
    if packed.shape[1] % 4:
        raise parts.shapes_error(name)
    return np.ascontiguousarray(packed).view("<u4")


def _read_fp4(parts: Parts, name: str, blocks: tuple[int, ...], scales: str, level: str = "") -> BlockWeight:
    """A weight whose codes are `name`, with scales of a type, and a second level of them."""
    words, scale = _words(parts, name), parts.small_scales("weight_scale", scales)
    inputs = words.shape[1] * _PER_WORD
    if scale.shape[0] != words.shape[0] or inputs not in [block * scale.shape[1] for block in blocks]:
        raise parts.shapes_error(name, "weight_scale")  # of FP6, which has the same names, the blocks would be longer
    found = BlockWeight(
        words,
        _FP4_BITS,
        inputs,
        scale,
        table=E2M1,
        outer=parts.number(level) if level else None,
        outer_divides=level == "weight_global_scale",
        factors=parts.factors(inputs),
        activations=read_activations(parts),
    )
    with np.errstate(over="ignore"):
        parts.require_finite(level or "weight_scale", found.scales)
    return found


def _pack_tensors(weight: BlockWeight, name: str, scale_as: str = "") -> dict[str, Array]:
    found = {name: to_row_major(weight.words).view(np.uint8), "weight_scale": weight.scale.view(scale_as) if scale_as else weight.scale}
    return {**found, **activation_tensors(weight)}


def _write_nvfp4(weight: BlockWeight) -> dict[str, Array]:
    assert weight.outer is not None
    return {**_pack_tensors(weight, "weight_packed"), "weight_global_scale": weight.outer.reshape(1)}


def _write_nvfp4_modelopt(weight: BlockWeight) -> dict[str, Array]:
    assert weight.outer is not None
    found = {**_pack_tensors(weight, "weight"), "weight_scale_2": weight.outer}
    return {name: tensor.reshape(()) if tensor.size == 1 else tensor for name, tensor in found.items()}


def _config_nvfp4(written: Written) -> Documents:
    weights = {"num_bits": _FP4_BITS, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    return config_of_groups(written, "nvfp4-pack-quantized", lambda kind: {**weights, "scale_dtype": "torch.float8_e4m3fn"})


def _algorithm(written: Written) -> str:
    rounds_data = {kind.activations is not None for kind in written.layers.values()}
    if len(rounds_data) > 1:
        raise UnsupportedError(
            "data of some layers are rounded, and those of others stay float; ModelOpt states one algorithm for all layers",
            remedy="--to nvfp4 states each layer.",
            rule="not-lossless",
        )
    return "NVFP4" if rounds_data.pop() else "W4A16_NVFP4"


def _config_mxfp4(written: Written) -> Documents:
    weights = {
        "num_bits": _FP4_BITS,
        "type": "float",
        "strategy": "group",
        "group_size": 32,
        "symmetric": True,
        "scale_dtype": "torch.uint8",
    }
    return config_of_groups(written, "mxfp4-pack-quantized", lambda kind: weights)


_NVFP4_NEEDS = Needs((_FP4_BITS,), E2M1, scales=(_E4M3,), blocks=(16,), inputs_in_words=True)
_MXFP4 = Needs((_FP4_BITS,), E2M1, scales=(_E8M0,), blocks=(32,), inputs_in_words=True, has_activations=can_state_activations)
NVFP4 = Container(
    "nvfp4",
    "compressed-tensors (nvfp4-pack-quantized)",
    ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale", "input_scale"),
    lambda parts: "weight_packed" in parts and "weight_shape" not in parts and parts.dtype("weight_scale") == _E4M3,
    partial(_read_fp4, name="weight_packed", blocks=_NVFP4_BLOCKS, scales=_E4M3, level="weight_global_scale"),
    replace(
        _NVFP4_NEEDS,
        outer="divides",
        has_activations=lambda how: can_state_activations(how) or (how is not None and how.has_two_levels and how.scale_divides),
    ),
    _write_nvfp4,
    _config_nvfp4,
)
NVFP4_MODELOPT = Container(
    "nvfp4-modelopt",
    "ModelOpt (NVFP4)",
    ("weight_scale", "weight", "weight_scale_2", "input_scale", "pre_quant_scale"),
    lambda parts: parts.dtype("weight") == "uint8" and parts.dtype("weight_scale") == _E4M3,
    partial(_read_fp4, name="weight", blocks=_NVFP4_BLOCKS, scales=_E4M3, level="weight_scale_2"),
    replace(_NVFP4_NEEDS, outer="times", has_activations=lambda how: how is None or (how.has_two_levels and not how.scale_divides)),
    _write_nvfp4_modelopt,
    lambda written: documents_of_modelopt(written, _algorithm(written)),
)
MXFP4 = Container(
    "mxfp4",
    "compressed-tensors (mxfp4-pack-quantized)",
    ("weight_packed", "weight_scale", "input_scale"),
    lambda parts: "weight_packed" in parts and "weight_shape" not in parts and parts.dtype("weight_scale") == "uint8",
    partial(_read_fp4, name="weight_packed", blocks=_MXFP4_BLOCKS, scales=_E8M0),
    _MXFP4,
    partial(_pack_tensors, name="weight_packed", scale_as="uint8"),
    _config_mxfp4,
)
MXFP4_MODELOPT = Container(
    "mxfp4-modelopt",
    "ModelOpt or Quark (mxfp4)",
    ("weight_scale", "weight", "input_scale"),
    lambda parts: parts.dtype("weight") == "uint8" and parts.dtype("weight_scale") == "uint8",
    partial(_read_fp4, name="weight", blocks=_MXFP4_BLOCKS, scales=_E8M0),
)


_EXPERTS_BLOCK, _BYTES = 32, 16
_EXPERT_PARTS = ("blocks", "scales", "bias")
#: The layers of a tensor of gpt-oss -> their rows in it.
_LAYERS = {
    "gate_up_proj": {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)},
    "down_proj": {"down_proj": slice(None)},
}


def name_experts(checkpoint: Checkpoint, *, are_apart: bool = True) -> Checkpoint:
    """The checkpoint with names of layers for experts of gpt-oss.

    Args:
        checkpoint: as it is read.
        are_apart: whether gate and up become layers of their own, with names that MLX has, as `experts.gate_proj.bias`. Else only codes and
            scales get other names, as `experts.gate_up_proj.blocks`.
    """
    tensors, places = dict(checkpoint.tensors), dict(checkpoint.places)
    parts = _EXPERT_PARTS if are_apart else _EXPERT_PARTS[:2]
    for name in checkpoint.tensors:
        around, _, own = name.rpartition(".")
        layer, _, part = own.rpartition("_")
        if part not in parts or layer not in _LAYERS or f"{around}.{layer}_blocks" not in checkpoint.tensors:
            continue
        tensor, place = tensors.pop(name), places.pop(name)
        if tensor.ndim < 2:
            raise InvalidModelError(f"{name} has shape {list(tensor.shape)}; experts and outputs are its first axes", rule="wrong-type")
        for made, rows in (_LAYERS[layer] if are_apart else {layer: slice(None)}).items():
            tensors[f"{around}.{made}.{part}"] = tensor[:, rows]
            places[f"{around}.{made}.{part}"] = place
    return replace(checkpoint, tensors=tensors, places=places)


def _read_experts(parts: Parts) -> BlockWeight:
    blocks, scales = parts.tensors["blocks"], parts.tensors.get("scales")
    if blocks.dtype != np.uint8 or blocks.ndim != 4 or blocks.shape[3] != _BYTES or not blocks.size:
        raise parts.tensor_error("blocks", f"uint8 [E, N, G, {_BYTES}]")
    if scales is None or scales.dtype != np.uint8 or scales.shape != blocks.shape[:3]:
        raise parts.tensor_error("scales", f"uint8 {list(blocks.shape[:3])}")
    experts, outputs, groups = scales.shape
    words = np.ascontiguousarray(blocks).reshape(experts * outputs, groups * _BYTES).view("<u4")
    scale: Array = np.ascontiguousarray(scales).reshape(experts * outputs, groups).view(dtype_of("float8_e8m0fnu"))
    parts.require_finite("scales", scale)
    return BlockWeight(words, 4, groups * _EXPERTS_BLOCK, scale, table=E2M1, experts=experts)


MXFP4_GPT_OSS = Container(
    "mxfp4-gpt-oss",
    "gpt-oss (mxfp4)",
    ("blocks", "scales"),
    lambda parts: "blocks" in parts,
    _read_experts,
)
