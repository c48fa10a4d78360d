"""gpt-oss: the experts of a layer in one tensor each, in MXFP4; read alone.

`experts.down_proj_blocks` uint8 [E, N, G, 16], two codes in a byte, the lower half first, `experts.down_proj_scales` uint8 [E, N, G],
powers of two (E8M0) of 32 inputs, and `experts.down_proj_bias` [E, N]. Rows of `experts.gate_up_proj` are those of two layers in turns, the
gate first. Source: integrations/mxfp4.py and models/gpt_oss of transformers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.container import Container, Parts
from qconvert.checkpoints.safetensors import Checkpoint
from qconvert.checkpoints.weight import E2M1, BlockWeight, dtype_of
from qconvert.errors import InvalidModelError

_BLOCK, _BYTES = 32, 16
_PARTS = ("blocks", "scales", "bias")
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
    parts = _PARTS if are_apart else _PARTS[:2]
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


def _read(parts: Parts, config: Config) -> BlockWeight:
    blocks, scales = parts.tensors["blocks"], parts.tensors.get("scales")
    if blocks.dtype != np.uint8 or blocks.ndim != 4 or blocks.shape[3] != _BYTES or not blocks.size:
        raise parts.tensor_error("blocks", f"uint8 [E, N, G, {_BYTES}]")
    if scales is None or scales.dtype != np.uint8 or scales.shape != blocks.shape[:3]:
        raise parts.tensor_error("scales", f"uint8 {list(blocks.shape[:3])}")
    experts, outputs, groups = scales.shape
    words = np.ascontiguousarray(blocks).reshape(experts * outputs, groups * _BYTES).view("<u4")
    scale: Array = np.ascontiguousarray(scales).reshape(experts * outputs, groups).view(dtype_of("float8_e8m0fnu"))
    parts.require_finite("scales", scale)
    return BlockWeight(words, 4, groups * _BLOCK, scale, table=E2M1, experts=experts)


MXFP4_GPT_OSS = Container(
    "mxfp4-gpt-oss",
    "gpt-oss (mxfp4)",
    ("blocks", "scales"),
    lambda parts: "blocks" in parts,
    _read,
)
