"""Weights of each type of layer in the .bin file, in ncnn's order (load_model in src/layer/*.cpp)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.plugin import Array, UnsupportedError
from qconvert_ncnn.container import Layer, Weights

#: Layers with a larger int8_scale_term have int8 results.
REQUANTIZED = 100
_MOST = 2**31
#: The most elements of a layer without weights.
_MOST_MADE = 2**24


def _count(layer: Layer, key: int) -> int:
    found = layer.integer(key)
    if not 0 < found < _MOST:
        raise layer.invalid(f"the parameter {key} is {found}, not a positive count", rule="not-a-count")
    return found


def _product(layer: Layer, file: Weights, bias_key: int, size_key: int, scales: int) -> tuple[Array, ...]:
    """Read weights, bias or an empty array, and for int8 the scales of the weights, the data, and an int8 result."""
    weights = file.read_marked(_count(layer, size_key), layer)
    bias = file.read_float32(_count(layer, 0), layer) if layer.integer(bias_key) else np.zeros(0, np.float32)
    term = layer.integer(8)
    if (weights.dtype == np.int8) != bool(term):
        raise layer.invalid(f"the weights are {weights.dtype}, and the parameter 8 is {term}", rule="contradicting-types")
    if not term:
        return weights, bias
    found = [weights, bias, file.read_float32(scales, layer), file.read_float32(1, layer)]
    if term > REQUANTIZED:
        found.append(file.read_float32(1, layer))
    for item in found[2:]:
        if not (np.isfinite(item).all() and (item >= 0).all()):
            raise layer.invalid("a scale is negative or not finite", rule="scale-not-positive")
    if not found[3][0] or (len(found) > 4 and not found[4][0]):
        raise layer.invalid("the scale of the data is 0", rule="scale-not-positive")
    return tuple(found)


def _convolution(layer: Layer, file: Weights) -> tuple[Array, ...]:
    """Read a convolution: a scale for each output, or with groups one for each of these, or one for all."""
    if layer.integer(19):
        raise UnsupportedError("the weights are computed by another layer", where=str(layer), rule="weights-not-constant")
    is_grouped = layer.kind == "ConvolutionDepthWise"
    one = is_grouped and layer.integer(8) in (2, REQUANTIZED + 2)
    return _product(layer, file, 5, 6, 1 if one else _count(layer, 7 if is_grouped else 0))


def _deconvolution(layer: Layer, file: Weights) -> tuple[Array, ...]:
    if layer.integer(28) or layer.integer(8):
        raise UnsupportedError("the weights are computed by another layer, or are int8", where=str(layer), rule="form-not-covered")
    return _product(layer, file, 5, 6, 0)


def _inner_product(layer: Layer, file: Weights) -> tuple[Array, ...]:
    if layer.integer(8) > REQUANTIZED:
        raise UnsupportedError("the result is int8", where=str(layer), rule="form-not-covered")
    return _product(layer, file, 1, 2, _count(layer, 0))


def _gemm(layer: Layer, file: Weights) -> tuple[Array, ...]:
    """Read a constant matrix N x K as the second factor, or K x N, and a bias for each column."""
    form = [layer.integer(key) for key in (4, 5, 2, 11, 12, 13, 14, 18)]
    scaled = (layer.number(0, 1.0), layer.number(1, 1.0)) != (1.0, 1.0)
    if form != [0, 1, 0, 0, 0, 0, 0, 0] or scaled or (layer.integer(6) and layer.integer(10) not in (-1, 4)):
        raise UnsupportedError(
            "is not a product of data with constants plus one number for each column", where=str(layer), rule="form-not-covered"
        )
    weights = file.read_marked(_count(layer, 8) * _count(layer, 9), layer)
    if weights.dtype == np.int8:
        raise UnsupportedError("the weights are int8", where=str(layer), rule="form-not-covered")
    added = layer.integer(6) and layer.integer(10) == 4
    return weights, file.read_marked(_count(layer, 8), layer) if added else np.zeros(0, np.float32)


def _memory(layer: Layer, file: Weights) -> tuple[Array, ...]:
    count = 1
    for key in (0, 1, 11, 2):
        count *= max(layer.integer(key), 1)
    if count > _MOST:
        raise layer.invalid(f"the number of elements is {count}", rule="too-many-elements")
    return (file.read_float32(count, layer) if layer.integer(21, 1) else file.read_marked(count, layer),)


def _several(layer: Layer, file: Weights, arrays: int) -> tuple[Array, ...]:
    """Read so many arrays, the parameter 0 being the size of each."""
    return tuple(file.read_float32(_count(layer, 0), layer) for _ in range(arrays))


def _affine(layer: Layer, file: Weights, size_key: int, affine_key: int) -> tuple[Array, ...]:
    """Read factors and addends; () without them: the reader of the layer makes factors of 1 and addends of 0."""
    count = _count(layer, size_key)
    if layer.integer(affine_key, 1):
        return tuple(file.read_float32(count, layer) for _ in range(2))
    if count > _MOST_MADE:
        raise layer.invalid(f"the number of elements is {count}, without weights", rule="too-many-elements")
    return ()


def bottom_scale(layer: Layer, weights: tuple[Array, ...]) -> float:
    """Return the inverse scale to which an int8 layer rounds its data; 0 for all other layers."""
    return float(weights[3][0]) if len(weights) > 3 and layer.integer(8) else 0.0


def top_scale(weights: tuple[Array, ...]) -> float:
    """Return the inverse scale of an int8 result; 0 for a float result."""
    return float(weights[4][0]) if len(weights) > 4 else 0.0


def scales_of(weights: tuple[Array, ...]) -> Array:
    """Return the inverse scales of weights. 0 marks a channel of zeros, which gets the least positive one."""
    found = weights[2]
    return np.where(found > 0, found, found[found > 0].min() if (found > 0).any() else np.float32(1)).astype(np.float32)


LOADERS: dict[str, Callable[[Layer, Weights], tuple[Array, ...]]] = {
    "Convolution": _convolution,
    "ConvolutionDepthWise": _convolution,
    "Deconvolution": _deconvolution,
    "DeconvolutionDepthWise": _deconvolution,
    "InnerProduct": _inner_product,
    "Gemm": _gemm,
    "MemoryData": _memory,
    "PReLU": lambda layer, file: _several(layer, file, 1),
    "BatchNorm": lambda layer, file: _several(layer, file, 4),
    "Scale": lambda layer, file: _several(layer, file, 2 if layer.integer(1) else 1),
    "Bias": lambda layer, file: _several(layer, file, 1),
    "LayerNorm": lambda layer, file: _affine(layer, file, 0, 2),
    "InstanceNorm": lambda layer, file: _affine(layer, file, 0, 2),
    "GroupNorm": lambda layer, file: _affine(layer, file, 1, 3),
}
