"""Resize as gathers, where it takes the nearest element, or else as products with matrices of weights, one axis after the other.

Formulas: ONNX Resize, opset 19. Positions are worked out in float32, as onnxruntime does, since roundings hang on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definition, NoDefinitionError
from qconvert.graph import Array, numpy_dtype

_HALF = np.float32(0.5)


@dataclass(frozen=True)
class _Axis:
    """An axis that is resized: its size, the wanted one, their ratio as the node says it, and the part of the data that is taken."""

    axis: int
    size: int
    wanted: int
    scale: np.float32
    start: float = 0.0
    end: float = 1.0


def _resize(s: Decomposition) -> None:
    """Each axis in turn."""
    mode = str(s.attribute("mode", "nearest"))
    axes = [item for item in _axes(s) if item.wanted != item.size or item.scale != 1 or (item.start, item.end) != (0, 1)]
    value = s.x if axes else s("Identity", s.x)
    for item in axes:
        if mode == "nearest":
            positions = _positions(s, item)
            value = s("Gather", value, s.ints(*np.clip(_round_positions(s, positions), 0, item.size - 1).tolist()), axis=item.axis)
        else:
            value = _product(s, value, item, _weights(s, item, mode))
    s.end(value)


def _product(s: Decomposition, value: str, item: _Axis, weights: Array) -> str:
    """The data times weights (wanted, size) along an axis."""
    if s.tensor().dtype not in ("float32", "float64", "float16"):
        raise NoDefinitionError("integers between which nothing is interpolated")
    matrix, rank = weights.astype(numpy_dtype(s.tensor().dtype)), s.rank()
    if item.axis == rank - 1:
        return s("MatMul", value, s.const(matrix.T.copy()))
    perm = [*(axis for axis in range(rank) if axis != item.axis), item.axis]
    turned = s("MatMul", s("Transpose", value, perm=perm), s.const(matrix.T.copy()))
    return s("Transpose", turned, perm=[perm.index(axis) for axis in range(rank)])


def _axes(s: Decomposition) -> list[_Axis]:
    shape = s.shape()
    rank = len(shape)
    upsample = s.op["op_type"] == "Upsample" or s.version < 11
    chosen = [int(axis) % rank for axis in s.attribute("axes", None) or range(rank)]
    crops = s.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    roi = [float(value) for value in s.known(1).reshape(-1)] if crops and not upsample else [0.0] * len(chosen) + [1.0] * len(chosen)
    if upsample:
        given: Array | None = s.known(1) if s.version >= 9 else np.array(s.attribute("scales", ()), np.float32)
        sizes: Array | None = None
    else:
        given, sizes = (s.known(index).reshape(-1) if s.input(index) and s.tensor(index).shape != (0,) else None for index in (2, 3))
    if (given is None) == (sizes is None) or len(roi) != 2 * len(chosen):
        raise NoDefinitionError("sizes")
    stated = given if given is not None else sizes
    if stated is None or stated.size != len(chosen):
        raise NoDefinitionError("sizes")
    if given is not None:
        scales = [np.float32(value) for value in given.reshape(-1)]
        wanted = [int(np.floor(np.float32(shape[axis]) * scale)) for axis, scale in zip(chosen, scales, strict=True)]
    else:
        wanted = [int(size) for size in stated]
        scales = [np.float32(size) / np.float32(shape[axis]) for axis, size in zip(chosen, wanted, strict=True)]
        policy = s.attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = min(scales) if policy == "not_larger" else max(scales)
            wanted = [math.floor(float(one) * shape[axis] + 0.5) for axis in chosen]
            scales = [one] * len(chosen)
    if min(wanted, default=1) < 1 or 0 in shape:
        raise NoDefinitionError("no elements")
    return [
        _Axis(axis, shape[axis], size, scale, roi[index], roi[len(chosen) + index])
        for index, (axis, size, scale) in enumerate(zip(chosen, wanted, scales, strict=True))
    ]


def _positions(s: Decomposition, item: _Axis) -> Array:
    """Where each output element lies in the input."""
    s.require_small(item.wanted)
    x, scale, size = np.arange(item.wanted, dtype=np.float32), item.scale, np.float32(item.size)
    mode = str(s.attribute("coordinate_transformation_mode", "half_pixel"))
    if s.op["op_type"] == "Upsample" or s.version < 11:
        mode = "asymmetric"
    if mode == "pytorch_half_pixel" and item.wanted == 1:
        return np.zeros(1, np.float32)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return np.asarray((x + _HALF) / scale - _HALF)
    if mode == "half_pixel_symmetric":
        adjustment = np.float32(item.wanted) / (scale * size)
        return np.asarray(size / 2 * (1 - adjustment) + (x + _HALF) / scale - _HALF, np.float32)
    if mode == "asymmetric":
        return np.asarray(x / scale)
    if mode == "align_corners":
        return np.asarray(x * (size - 1) / np.float32(item.wanted - 1)) if item.wanted > 1 else np.zeros(1, np.float32)
    if mode == "tf_crop_and_resize":
        start, end = np.float32(item.start), np.float32(item.end)
        if item.wanted == 1:
            found = np.asarray([_HALF * (start + end) * (size - 1)])
        else:
            found = np.asarray(start * (size - 1) + x * (end - start) * (size - 1) / np.float32(item.wanted - 1))
        if (found < 0).any() or (found > size - 1).any():
            raise NoDefinitionError("values from outside")
        return found
    raise NoDefinitionError(mode)


def _round_positions(s: Decomposition, x: Array) -> Array:
    mode = "floor" if s.op["op_type"] == "Upsample" or s.version < 11 else str(s.attribute("nearest_mode", "round_prefer_floor"))
    rounded = {"floor": np.floor(x), "ceil": np.ceil(x), "round_prefer_floor": np.ceil(x - _HALF), "round_prefer_ceil": np.floor(x + _HALF)}
    return np.asarray(rounded[mode], np.int64)


def _weights(s: Decomposition, item: _Axis, mode: str) -> Array:
    """How much of each input element is in each output element: (wanted, size)."""
    x = np.asarray(_positions(s, item), np.float64)
    stretch = 1 / min(float(item.scale), 1.0) if s.attribute("antialias", 0) else 1.0
    radius = math.ceil((2 if mode == "cubic" else 1) * stretch) + 1
    a = float(s.attribute("cubic_coeff_a", -0.75))
    outside = bool(s.attribute("exclude_outside", 0))
    s.require_small(item.wanted, item.size)
    found = np.zeros((item.wanted, item.size))
    rows = np.arange(item.wanted)
    for step in range(-radius, radius + 1):
        at = np.floor(x).astype(np.int64) + step
        weight = _curve(np.abs(at - x) / stretch, mode, a)
        if outside:
            weight = np.where((at >= 0) & (at < item.size), weight, 0.0)
        np.add.at(found, (rows, np.clip(at, 0, item.size - 1)), weight)
    return np.asarray(found / found.sum(axis=1, keepdims=True) if outside or stretch != 1 else found)


def _curve(distance: Array, mode: str, a: float) -> Array:
    """The weight of an element at a distance: a triangle, or Keys' cubic convolution with the coefficient a."""
    d = distance
    if mode != "cubic":
        return np.asarray(np.maximum(1 - d, 0))
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.asarray(np.where(d <= 1, near, np.where(d < 2, far, 0.0)))


DEFINITIONS: dict[str, Definition] = {"Resize": _resize, "Upsample": _resize}
