"""INT4 AWQ of ModelOpt (W4A16_AWQ, W4A8_AWQ): two outputs in a byte, and factors that data are multiplied by.

`weight` uint8 [N / 2, K], whose lower half is output 2n, in two's complement; `weight_scale` float32 [N, G]; perhaps `pre_quant_scale` [K].
The value is scale * q. Of W4A8_AWQ, which is read alone, kernels round it to FP8 by `weight_scale_2` and data by `input_scale`. Source:
export/quant_utils.py of TensorRT Model Optimizer.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import read_activations
from qconvert.checkpoints.config import FILE_OF_MODELOPT, Config
from qconvert.checkpoints.container import Container, Documents, Needs, Parts, Written, config_of
from qconvert.checkpoints.weight import BlockWeight, pack, symmetric_zero_point

_BITS, _AWQ = 4, "W4A16_AWQ"
_PRODUCER = {"name": "modelopt", "version": "0.47.0"}
_SIGNS = np.uint8(0x88)  # of both halves: what makes codes of two's complement


def _read(parts: Parts, config: Config) -> BlockWeight:
    packed, scales = parts.matrix("weight", "uint8"), parts.scales("weight_scale")
    if 2 * len(packed) != len(scales) or packed.shape[1] % scales.shape[1]:
        raise parts.shapes_error("weight", "weight_scale")
    halves = packed ^ _SIGNS
    codes = np.stack([halves & np.uint8(15), halves >> np.uint8(4)], axis=1).reshape(-1, packed.shape[1])
    zeros = np.full(scales.shape, symmetric_zero_point(_BITS), np.int16)
    factors, how = parts.factors(packed.shape[1]), read_activations(parts, config)
    return BlockWeight(pack(codes, _BITS), _BITS, packed.shape[1], scales, zeros, factors=factors, is_signed=True, activations=how)


def _write(weight: BlockWeight) -> dict[str, Array]:
    codes = weight.codes ^ np.uint8(symmetric_zero_point(_BITS))
    found = {"weight": codes[0::2] | codes[1::2] << np.uint8(4), "weight_scale": weight.scale}
    return found if weight.factors is None else {**found, "pre_quant_scale": weight.factors}


def documents_of_modelopt(written: Written, algorithm: str) -> Documents:
    """What config.json says, and ModelOpt's own file, which TensorRT-LLM reads."""
    size = {"group_size": written.usual[1]} if written.usual[1] > 0 else {}
    stated = {"quant_algo": algorithm, "quant_method": "modelopt", "producer": _PRODUCER, **size, "ignore": list(written.real)}
    own = {"quant_algo": algorithm, "kv_cache_quant_algo": None, **size, "exclude_modules": list(written.real)}
    if algorithm == _AWQ:
        own |= {"has_zero_point": False, "pre_quant_scale": True}
    return {**config_of(stated), FILE_OF_MODELOPT: {"producer": _PRODUCER, "quantization": own}}


INT4_MODELOPT = Container(
    "awq-modelopt",
    "ModelOpt (W4A16_AWQ)",
    ("weight_scale", "weight", "pre_quant_scale", "weight_scale_2", "input_scale"),
    lambda parts: parts.dtype("weight") == "uint8" and parts.dtype("weight_scale") == "float32",
    _read,
    Needs(
        (_BITS,),
        zeros=lambda bits: (symmetric_zero_point(bits), symmetric_zero_point(bits)),
        scales=("float32",),
        has_factors=True,
        outputs_in_words=True,
        one_block=True,
    ),
    _write,
    partial(documents_of_modelopt, algorithm=_AWQ),
)
