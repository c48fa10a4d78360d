"""FP4 (E2M1) in blocks: NVFP4 and MXFP4, by compressed-tensors and ModelOpt.

Two codes in a byte, the lower half first. Of NVFP4 a block of 16 has a scale of E4M3, and the tensor one of float32, by which
compressed-tensors divides (`weight_global_scale`) and ModelOpt multiplies (`weight_scale_2`); of MXFP4 a block of 32 has a power of two
(E8M0). Twice the value of a code is an integer from -12 to 12, so that weights are int8 with half the scale: the same values, in types that
ONNX and its runtimes have. Source: compressed-tensors, compressors/nvfp4 and mxfp4; OCP Microscaling Formats 1.0.
"""

from __future__ import annotations

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.states.blocks.config import Config
from qconvert.formats.torch.states.blocks.packing import Layer, layer_in_blocks, parts_of
from qconvert.formats.torch.states.entries import Entries
from qconvert.graph import Array

__all__ = ["read_mxfp4", "read_nvfp4", "read_nvfp4_of_modelopt"]

#: Twice the value of each code of E2M1.
_TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_BIAS = 127  # of the exponent that E8M0 is
_NAN = 255


def read_nvfp4(entries: Entries, layer: str, config: Config) -> Layer:
    """The weight of a layer of compressed-tensors; see in_blocks()."""
    return _layer(entries, layer, "weight_packed", _scales(entries, layer) / _number(entries, layer, "weight_global_scale"))


def read_nvfp4_of_modelopt(entries: Entries, layer: str, config: Config) -> Layer:
    """The weight of a layer of ModelOpt."""
    return _layer(entries, layer, "weight", _scales(entries, layer) * _number(entries, layer, "weight_scale_2"))


def read_mxfp4(entries: Entries, layer: str, config: Config) -> Layer:
    """The weight of a layer of compressed-tensors whose scales are powers of two."""
    exponents = entries.numbers(layer, "weight_scale")
    if exponents is None or exponents.dtype != np.uint8 or exponents.ndim != 2 or (exponents == _NAN).any():
        raise InvalidModelError("weight_scale is no matrix of powers of two (E8M0)", where=repr(layer), rule="wrong-type")
    return _layer(entries, layer, "weight_packed", np.ldexp(np.float32(1), exponents.astype(np.int32) - _BIAS))


def _scales(entries: Entries, layer: str) -> Array:
    found = entries.tensor(layer, "weight_scale")
    if found is None or found.dtype != "float8e4m3fn" or len(found.shape) != 2:
        raise InvalidModelError("weight_scale is no matrix of E4M3", where=repr(layer), rule="wrong-type")
    return np.asarray(found.data).astype(np.float32)


def _number(entries: Entries, layer: str, name: str) -> np.float32:
    found = entries.number(layer, name)
    if found is None or not np.isfinite(found) or found == 0:
        raise InvalidModelError(f"{name} is missing, 0 or not finite", where=repr(layer), rule="scale-not-finite")
    return np.float32(found)


def _layer(entries: Entries, layer: str, name: str, scales: Array) -> Layer:
    for data in ("input_global_scale", "input_scale"):
        if entries.numbers(layer, data) is not None:
            raise UnsupportedError(
                f"{data}: data are rounded to 4 bits too, which is not covered", where=repr(layer), rule="dynamic-operator"
            )
    packed = entries.numbers(layer, name)
    if packed is None or packed.dtype != np.uint8 or packed.ndim != 2:
        raise InvalidModelError(f"{name} is no matrix of bytes", where=repr(layer), rule="wrong-type")
    if not np.isfinite(scales).all():
        raise InvalidModelError("a scale is not finite", where=repr(layer), rule="scale-not-finite")
    halves = scales.astype(np.float32) / np.float32(2)
    return layer_in_blocks(layer, 8, _TWICE[parts_of(packed, 4)], halves, np.zeros(halves.shape, np.int64), is_signed=True)
