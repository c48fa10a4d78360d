"""FP4 (E2M1) in blocks: NVFP4 and MXFP4, by compressed-tensors and ModelOpt; two codes in a byte, the lower half first.

Of NVFP4 a block of 16 has a scale of E4M3, and the tensor one of float32, by which compressed-tensors divides (`weight_global_scale`) and
ModelOpt multiplies (`weight_scale_2`); of MXFP4 a block of 32 has a power of two (E8M0). Source: compressed-tensors, compressors/nvfp4 and
mxfp4; export/quant_utils.py of TensorRT Model Optimizer; OCP Microscaling Formats 1.0.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.compressed_tensors import config_of_groups
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.container import Container, Needs, Parts, Written
from qconvert.checkpoints.modelopt import config_of_modelopt, files_of_modelopt
from qconvert.checkpoints.weight import E2M1, BlockWeight, to_row_major
from qconvert.errors import InvalidModelError, UnsupportedError

__all__ = ["E8M0_NAN", "MXFP4", "MXFP4_MODELOPT", "NVFP4", "NVFP4_MODELOPT"]


_BITS, _PER_WORD, _NVFP4 = 4, 8, "W4A16_NVFP4"
#: Inputs of a block; ModelOpt has NVFP4 with 32 too.
_NVFP4_BLOCKS, _MXFP4_BLOCKS = (16, 32), (32,)
#: The exponent of E8M0 that stands for no number.
E8M0_NAN = 255


def _words(parts: Parts, name: str) -> Array:
    packed = parts.matrix(name, "uint8")
    if packed.shape[1] % 4:
        raise parts.shapes_error(name)
    return np.ascontiguousarray(packed).view("<u4")


def _weight(parts: Parts, name: str, scale: Array, config: Config, blocks: tuple[int, ...], **more: Any) -> BlockWeight:
    for data in ("input_global_scale", "input_scale"):
        if data in parts:
            raise UnsupportedError(
                f"{data}: data are rounded to 4 bits too, which is not covered", where=repr(parts.layer), rule="dynamic-operator"
            )
    config.refuse_rounded_data(parts.layer)
    words = _words(parts, name)
    inputs = words.shape[1] * _PER_WORD
    if scale.shape[0] != words.shape[0] or inputs not in [block * scale.shape[1] for block in blocks]:
        raise parts.shapes_error(name, "weight_scale")  # of FP6, which has the same names, the blocks would be longer
    return BlockWeight(words, _BITS, inputs, scale, table=E2M1, **more)


def _e4m3(parts: Parts) -> Array:
    found = parts.matrix("weight_scale", "float8_e4m3fn")
    if not np.isfinite(found.astype(np.float32)).all():
        raise InvalidModelError("a scale is not finite", where=repr(parts.layer), rule="scale-not-finite")
    return found


def _powers(parts: Parts) -> Array:
    import ml_dtypes

    found = parts.matrix("weight_scale", "uint8")
    if (found == E8M0_NAN).any():
        raise parts.tensor_error("weight_scale", "a matrix of powers of two (E8M0)")
    return found.view(ml_dtypes.float8_e8m0fnu)


def _read_nvfp4(parts: Parts, config: Config) -> BlockWeight:
    return _weight(
        parts, "weight_packed", _e4m3(parts), config, _NVFP4_BLOCKS, outer=parts.number("weight_global_scale"), outer_divides=True
    )


def _read_nvfp4_modelopt(parts: Parts, config: Config) -> BlockWeight:
    return _weight(parts, "weight", _e4m3(parts), config, _NVFP4_BLOCKS, outer=parts.number("weight_scale_2"))


def _read_mxfp4(parts: Parts, config: Config) -> BlockWeight:
    return _weight(parts, "weight_packed", _powers(parts), config, _MXFP4_BLOCKS)


def _read_mxfp4_modelopt(parts: Parts, config: Config) -> BlockWeight:
    return _weight(parts, "weight", _powers(parts), config, _MXFP4_BLOCKS)


def _pack_tensors(weight: BlockWeight, name: str, scale_as: str = "") -> dict[str, Array]:
    scale = np.ascontiguousarray(weight.scale)
    return {name: to_row_major(weight.words).view(np.uint8), "weight_scale": scale.view(scale_as) if scale_as else scale}


def _write_nvfp4(weight: BlockWeight) -> dict[str, Array]:
    assert weight.outer is not None
    return {**_pack_tensors(weight, "weight_packed"), "weight_global_scale": weight.outer.reshape(1)}


def _write_nvfp4_modelopt(weight: BlockWeight) -> dict[str, Array]:
    assert weight.outer is not None
    return {**_pack_tensors(weight, "weight"), "weight_scale_2": weight.outer.reshape(())}


def _write_mxfp4(weight: BlockWeight) -> dict[str, Array]:
    return _pack_tensors(weight, "weight_packed", "uint8")


def _config_nvfp4(written: Written) -> dict[str, Any]:
    weights = {"num_bits": _BITS, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    return _config_of("nvfp4-pack-quantized", {**weights, "scale_dtype": "torch.float8_e4m3fn"}, written)


def _config_mxfp4(written: Written) -> dict[str, Any]:
    weights = {"num_bits": _BITS, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True, "scale_dtype": "torch.uint8"}
    return _config_of("mxfp4-pack-quantized", weights, written)


def _config_of(format: str, weights: dict[str, Any], written: Written) -> dict[str, Any]:
    return config_of_groups(format, [{"format": format, "targets": ["Linear"], "weights": weights}], written)


def _nvfp4(outer: str) -> Needs:
    return Needs((_BITS,), E2M1, scales=("float8_e4m3fn",), blocks=(16,), outer=outer, inputs_in_words=True)


_MXFP4 = Needs((_BITS,), E2M1, scales=("float8_e8m0fnu",), blocks=(32,), inputs_in_words=True)
NVFP4 = Container(
    "nvfp4",
    "compressed-tensors (nvfp4-pack-quantized)",
    ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"),
    lambda parts: "weight_packed" in parts and "weight_shape" not in parts and parts.dtype("weight_scale") == "float8_e4m3fn",
    _read_nvfp4,
    _nvfp4("divides"),
    _write_nvfp4,
    _config_nvfp4,
)
NVFP4_MODELOPT = Container(
    "nvfp4-modelopt",
    "ModelOpt (W4A16_NVFP4)",
    ("weight_scale", "weight", "weight_scale_2", "input_scale"),
    lambda parts: parts.dtype("weight") == "uint8" and parts.dtype("weight_scale") == "float8_e4m3fn",
    _read_nvfp4_modelopt,
    _nvfp4("times"),
    _write_nvfp4_modelopt,
    partial(config_of_modelopt, algorithm=_NVFP4),
    partial(files_of_modelopt, algorithm=_NVFP4),
)
MXFP4 = Container(
    "mxfp4",
    "compressed-tensors (mxfp4-pack-quantized)",
    ("weight_packed", "weight_scale"),
    lambda parts: "weight_packed" in parts and "weight_shape" not in parts and parts.dtype("weight_scale") == "uint8",
    _read_mxfp4,
    _MXFP4,
    _write_mxfp4,
    _config_mxfp4,
)
MXFP4_MODELOPT = Container(
    "mxfp4-modelopt",
    "ModelOpt or Quark (mxfp4)",
    ("weight_scale", "weight", "input_scale"),
    lambda parts: parts.dtype("weight") == "uint8" and parts.dtype("weight_scale") == "uint8",
    _read_mxfp4_modelopt,
)
