"""MLX: `affine` with scales and biases, `mxfp4`, `nvfp4` and `mxfp8` with scales alone.

`weight` uint32 [N, K * bits / 32], codes in a stream along the inputs; `scales` and `biases` [N, G], the value is scale * q + bias, each of
both rounded to their type. Experts are in one tensor, with an axis of their own before these. Of the others, `scales` are uint8: E8M0 of 32
inputs, E4M3 of 16 in nvfp4, without a second level. Tables of embeddings are stored likewise. Source: mlx/backend/cpu/quantized.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.config import FILES_OF_CONFIG
from qconvert.checkpoints.container import Container, Documents, Needs, Written
from qconvert.checkpoints.parts import Parts
from qconvert.checkpoints.small_floats import refuse_nan_codes
from qconvert.checkpoints.weight import E2M1, E4M3, WORD, BlockWeight

_BITS = (2, 3, 4, 5, 6, 8)
_BLOCKS = (128, 64, 32)
_MX, _NVFP4 = 32, 16
#: What null stands for: mlx_lm writes it for single layers where mlx chooses (mlx/nn/layers/quantized.py).
_DEFAULTS = {"bits": 4, "group_size": 64}


def _read(parts: Parts) -> BlockWeight:
    parts, experts = parts.join_experts()
    words, scales, offsets = parts.words("weight"), parts.scales("scales"), parts.scales("biases")
    if scales.shape != offsets.shape or scales.dtype != offsets.dtype or len(scales) != len(words):
        raise parts.shapes_error("weight", "scales", "biases")
    bits, inputs = _sizes(parts, words, scales)
    return BlockWeight(words, bits, inputs, scales, offset=offsets, experts=experts)


def _sizes(parts: Parts, words: Array, scales: Array) -> tuple[int, int]:
    """Bits and inputs: bits * block is what the tensors say, and config.json says both."""
    stated = parts.own
    bits, block = (stated.get(name, "") if stated.get(name, "") is not None else default for name, default in _DEFAULTS.items())
    each = words.shape[1] * WORD // scales.shape[1]
    if words.shape[1] * WORD % scales.shape[1]:
        raise parts.shapes_error("weight", "scales")
    if type(bits) is not int or type(block) is not int:
        raise parts.unsupported(
            f"config.json states bits {bits!r} and group_size {block!r}; both are required, since the tensors do not tell them",
            rule="config-missing",
        )
    if bits not in _BITS or bits * block != each:
        raise parts.invalid(
            f"config.json states {bits} bits and blocks of {block}, the tensors of the layer say {each} bits a block",
            rule="config-contradicts",
        )
    return bits, each // bits * scales.shape[1]


def _read_of_mode(parts: Parts) -> BlockWeight:
    mode = str(parts.own.get("mode", "mxfp4"))
    if mode not in ("mxfp4", "nvfp4", "mxfp8"):
        raise parts.unsupported(f"config.json states mode {mode!r}, which is not covered", rule="blocks-not-covered")
    block, bits = _NVFP4 if mode == "nvfp4" else _MX, 8 if mode == "mxfp8" else 4
    parts, experts = parts.join_experts()
    words, scale = parts.words("weight"), parts.small_scales("scales", "float8_e4m3fn" if mode == "nvfp4" else "float8_e8m0fnu")
    inputs = words.shape[1] * WORD // bits
    if len(scale) != len(words) or scale.shape[1] * block != inputs:
        raise parts.shapes_error("weight", "scales")
    if mode == "mxfp8":
        refuse_nan_codes(parts, words.view(np.uint8))
    return BlockWeight(words, bits, inputs, scale, table=E4M3 if mode == "mxfp8" else E2M1, experts=experts)


def _write(weight: BlockWeight) -> dict[str, Array]:
    scales = weight.scale.view(np.uint8) if weight.scale.itemsize == 1 else weight.scale
    tensors = {"weight": weight.words, "scales": scales, **({} if weight.offset is None else {"biases": weight.offset})}
    return {name: tensor.reshape(*weight.shape[:-1], -1) for name, tensor in tensors.items()}


def _documents(written: Written, mode: str) -> Documents:
    bits, block = written.usual
    others = {name: {"group_size": other, "bits": other_bits, "mode": mode} for name, (other_bits, other) in written.unusual().items()}
    stated = {"group_size": block, "bits": bits, "mode": mode, **others}
    return {FILES_OF_CONFIG[0]: {"quantization": stated, "quantization_config": stated}}


def _make_container(name: str, mode: str, recognizes: Callable[[Parts], bool], needs: Needs, *, has_biases: bool = False) -> Container:
    return Container(
        name,
        f"MLX ({mode})",
        ("scales", "weight", "biases"),
        recognizes,
        _read if has_biases else _read_of_mode,
        replace(needs, has_experts=True, inputs_in_words=True),
        _write,
        partial(_documents, mode=mode),
        has_embeddings=True,
    )


MLX = _make_container(
    "mlx",
    "affine",
    lambda parts: parts.dtype("weight") == "uint32" and "biases" in parts and "scales" in parts,
    Needs(_BITS, has_offsets=True, scales=("float16", "bfloat16", "float32"), blocks=_BLOCKS),
    has_biases=True,
)
MLX_MXFP4 = _make_container(
    "mlx-mxfp4",
    "mxfp4",
    lambda parts: parts.dtype("weight") == "uint32" and parts.dtype("scales") == "uint8" and "biases" not in parts,
    Needs((4,), E2M1, scales=("float8_e8m0fnu",), blocks=(_MX,)),
)
MLX_NVFP4 = _make_container("mlx-nvfp4", "nvfp4", lambda parts: False, Needs((4,), E2M1, scales=("float8_e4m3fn",), blocks=(_NVFP4,)))
MLX_MXFP8 = _make_container("mlx-mxfp8", "mxfp8", lambda parts: False, Needs((8,), E4M3, scales=("float8_e8m0fnu",), blocks=(_MX,)))
