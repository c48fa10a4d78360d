"""FP8 (E4M3): a byte for each weight, and a scale for the tensor, each output, blocks of inputs, or blocks of 128 x 128.

`weight` float8_e4m3fn [N, K]. compressed-tensors (float-quantized): `weight_scale` [1], [N, 1], [N, G] or [N / 128, K / 128]; ModelOpt and
Quark: [], [N] or [N / 128, 1, K / 128, 1]; DeepSeek: `weight_scale_inv` [N / 128, K / 128], which is what a code is multiplied by, as the
others are; MXFP8: uint8 [N, K / 32], powers of two (E8M0). The value is scale * code. `input_scale` (`activation_scale`) is that of data,
where it is not computed at each run. Source: compressors/naive_quantized and mxfp8 of compressed-tensors; export/quant_utils.py of TensorRT
Model Optimizer; integrations/finegrained_fp8.py of transformers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import Activations, read_activations
from qconvert.checkpoints.awq import documents_of_modelopt
from qconvert.checkpoints.compressed_tensors import activation_tensors, can_state_activations, config_of_groups, has_matrix_of_scales
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.container import Container, Documents, LayerKind, Needs, Parts, Written, config_of, expand_blocks
from qconvert.checkpoints.weight import E4M3, BlockWeight, dtype_of, words_of_bytes

_BITS, _SQUARE, _MODELOPT = 8, 128, "FP8"
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


def _read(parts: Parts, config: Config) -> BlockWeight:
    codes = float8_codes(parts, "weight")
    name = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
    if parts.dtype(name) == "uint8":
        scale = parts.small_scales(name, "float8_e8m0fnu")
        if scale.shape[0] != len(codes) or codes.shape[1] % scale.shape[1]:
            raise parts.shapes_error("weight", name)
        config.require_block(parts.layer, codes.shape[1] // scale.shape[1], codes.shape[1])
    else:
        scale = expand_blocks(parts, config, name, parts.scales(name, (0, 1, 2, 4)), codes.shape)
    return BlockWeight(words_of_bytes(codes), _BITS, codes.shape[1], scale, table=E4M3, activations=read_activations(parts, config))


def _codes(weight: BlockWeight) -> Array:
    return np.ascontiguousarray(weight.codes).view(dtype_of("float8_e4m3fn"))


def _write(weight: BlockWeight) -> dict[str, Array]:
    first = {"tensor": weight.scale[0, :1], "block": weight.scale[::_SQUARE]}
    scale = first.get(weight.strategy, weight.scale)
    return {"weight": _codes(weight), "weight_scale": scale, **activation_tensors(weight)}


def _state_weights(kind: LayerKind) -> dict[str, Any]:
    stated: dict[str, Any] = {"num_bits": _BITS, "type": "float", "strategy": kind.strategy, "symmetric": True}
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
    return {"num_bits": _BITS, "type": "float", "symmetric": True, **size}


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
    _read,
    Needs((_BITS,), E4M3, scales=_FLOATS, has_activations=can_state_activations),
    _write,
    partial(config_of_groups, format="float-quantized", state_weights=_state_weights),
)
FP8_MODELOPT = Container(
    "fp8-modelopt",
    "ModelOpt or Quark (FP8)",
    ("weight_scale", "weight", "input_scale"),
    lambda parts: _is_fp8(parts) and "weight_scale" in parts and parts.dtype("weight_scale") != "uint8",
    _read,
    Needs((_BITS,), E4M3, scales=("float32",), outputs=0, has_activations=_rounds_by_one_scale),
    _write_modelopt,
    partial(documents_of_modelopt, algorithm=_MODELOPT),
)
FP8 = Container(
    "fp8",
    "FP8 of DeepSeek and Qwen",
    ("weight_scale_inv", "weight", "activation_scale", "input_scale"),
    lambda parts: _is_fp8(parts) and "weight_scale_inv" in parts,
    _read,
    Needs((_BITS,), E4M3, scales=("float32",), blocks=(_SQUARE,), outputs=_SQUARE, has_activations=_rounds_groups),
    _write_squares,
    _state_squares,
)
MXFP8 = Container(
    "mxfp8",
    "compressed-tensors or ModelOpt (mxfp8)",
    ("weight_scale", "weight", "input_scale"),
    lambda parts: _is_fp8(parts) and parts.dtype("weight_scale") == "uint8",
    _read,
    Needs((_BITS,), E4M3, scales=("float8_e8m0fnu",), blocks=(32,), has_activations=can_state_activations),
    _write_powers,
    partial(config_of_groups, format="mxfp8-quantized", state_weights=_state_powers),
)
