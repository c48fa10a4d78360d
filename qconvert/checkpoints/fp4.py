"""FP4 (E2M1) in blocks: NVFP4 and MXFP4, by compressed-tensors and ModelOpt, and of gpt-oss; two codes in a byte, the lower half first.

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

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import read_activations
from qconvert.checkpoints.awq import documents_of_modelopt
from qconvert.checkpoints.compressed_tensors import activation_tensors, can_state_activations, config_of_groups
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.container import Container, Documents, Needs, Parts, Written
from qconvert.checkpoints.safetensors import Checkpoint
from qconvert.checkpoints.weight import E2M1, BlockWeight, dtype_of, to_row_major
from qconvert.errors import InvalidModelError, UnsupportedError

_BITS, _PER_WORD = 4, 8
#: Inputs of a block; ModelOpt has NVFP4 with 32 too.
_NVFP4_BLOCKS, _MXFP4_BLOCKS = (16, 32), (32,)
_E4M3, _E8M0 = "float8_e4m3fn", "float8_e8m0fnu"


def _words(parts: Parts, name: str) -> Array:
    packed = parts.matrix(name, "uint8")
    if packed.shape[1] % 4:
        raise parts.shapes_error(name)
    return np.ascontiguousarray(packed).view("<u4")


def _read(parts: Parts, config: Config, name: str, blocks: tuple[int, ...], scales: str, level: str = "") -> BlockWeight:
    """A weight whose codes are `name`, with scales of a type, and a second level of them."""
    words, scale = _words(parts, name), parts.small_scales("weight_scale", scales)
    inputs = words.shape[1] * _PER_WORD
    if scale.shape[0] != words.shape[0] or inputs not in [block * scale.shape[1] for block in blocks]:
        raise parts.shapes_error(name, "weight_scale")  # of FP6, which has the same names, the blocks would be longer
    found = BlockWeight(
        words,
        _BITS,
        inputs,
        scale,
        table=E2M1,
        outer=parts.number(level) if level else None,
        outer_divides=level == "weight_global_scale",
        factors=parts.factors(inputs),
        activations=read_activations(parts, config),
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
    weights = {"num_bits": _BITS, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
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
    weights = {"num_bits": _BITS, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True, "scale_dtype": "torch.uint8"}
    return config_of_groups(written, "mxfp4-pack-quantized", lambda kind: weights)


_NVFP4_NEEDS = Needs((_BITS,), E2M1, scales=(_E4M3,), blocks=(16,), inputs_in_words=True)
_MXFP4 = Needs((_BITS,), E2M1, scales=(_E8M0,), blocks=(32,), inputs_in_words=True, has_activations=can_state_activations)
NVFP4 = Container(
    "nvfp4",
    "compressed-tensors (nvfp4-pack-quantized)",
    ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale", "input_scale"),
    lambda parts: "weight_packed" in parts and "weight_shape" not in parts and parts.dtype("weight_scale") == _E4M3,
    partial(_read, name="weight_packed", blocks=_NVFP4_BLOCKS, scales=_E4M3, level="weight_global_scale"),
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
    partial(_read, name="weight", blocks=_NVFP4_BLOCKS, scales=_E4M3, level="weight_scale_2"),
    replace(_NVFP4_NEEDS, outer="times", has_activations=lambda how: how is None or (how.has_two_levels and not how.scale_divides)),
    _write_nvfp4_modelopt,
    lambda written: documents_of_modelopt(written, _algorithm(written)),
)
MXFP4 = Container(
    "mxfp4",
    "compressed-tensors (mxfp4-pack-quantized)",
    ("weight_packed", "weight_scale", "input_scale"),
    lambda parts: "weight_packed" in parts and "weight_shape" not in parts and parts.dtype("weight_scale") == "uint8",
    partial(_read, name="weight_packed", blocks=_MXFP4_BLOCKS, scales=_E8M0),
    _MXFP4,
    partial(_pack_tensors, name="weight_packed", scale_as="uint8"),
    _config_mxfp4,
)
MXFP4_MODELOPT = Container(
    "mxfp4-modelopt",
    "ModelOpt or Quark (mxfp4)",
    ("weight_scale", "weight", "input_scale"),
    lambda parts: parts.dtype("weight") == "uint8" and parts.dtype("weight_scale") == "uint8",
    partial(_read, name="weight", blocks=_MXFP4_BLOCKS, scales=_E8M0),
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


def _read_experts(parts: Parts, config: Config) -> BlockWeight:
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
