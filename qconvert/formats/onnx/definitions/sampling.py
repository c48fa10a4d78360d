"""Definitions of operators that read or write data at places: Resize of all forms, GridSample, Col2Im.

Resize is gathers, where it takes the nearest element, or else products with matrices of weights, one axis after the other. Formulas: ONNX
Resize, opset 19. Positions are worked out in float32, as onnxruntime does, since roundings hang on them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definitions, NoDefinitionError
from qconvert.formats.onnx.initializers import ELEMENT_TYPES
from qconvert.graph import Array, numpy_dtype

#: Keys' coefficient of a cubic interpolation (ONNX GridSample).
_A = -0.75


@dataclass(frozen=True)
class _Line:
    """How places along one axis of `size` elements are met."""

    size: int
    align: bool
    padding: str

    def position(self, s: Decomposition, value: str) -> str:
        """A number from -1 to 1 as a position among the elements."""
        shifted = s("Add", value, 1.0)
        if self.align:
            return s("Mul", shifted, (self.size - 1) / 2)
        return s("Mul", s("Sub", s("Mul", shifted, float(self.size)), 1.0), 0.5)

    def pad_position(self, s: Decomposition, value: str) -> str:
        """A position that border or reflection brings back into the data."""
        if self.padding == "border":
            return s("Clip", value, s.number(0, 1), s.number(self.size - 1, 1))
        return self.reflect_position(s, value) if self.padding == "reflection" else value

    def reflect_position(self, s: Decomposition, value: str) -> str:
        """A position mirrored at the first and the last element, or at their outer edges."""
        edge = 0.0 if self.align else 0.5
        period = 2.0 * (self.size - 1 if self.align else self.size)
        if period == 0:
            return s("Mul", value, 0.0)
        moved = s("Add", value, edge) if edge else value
        rest = s("Sub", moved, s("Mul", s("Floor", s("Div", moved, period)), period))
        found = s("Min", rest, s("Sub", s("Mul", rest, -1.0), -period))
        return s("Sub", found, edge) if edge else found

    def place(self, s: Decomposition, value: str) -> tuple[str, str]:
        """A whole position as one of an element, and 0 where it has none, else 1; "" where every one has."""
        mirrored = self.reflect_position(s, value) if self.padding == "reflection" else value
        found = s("Clip", mirrored, s.number(0, 1), s.number(self.size - 1, 1))
        if self.padding != "zeros":
            return found, ""
        return found, s("Cast", s("Equal", found, value), to=s.element(1))


def _grid_sample(s: Decomposition) -> None:
    """The data at places between its elements: sums of the elements around each, by weights of their distances (ONNX, opset 22).

    As in onnxruntime, what border and reflection bring back is each position, and then each element around it that still lies outside.
    """
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(str(s.attribute("mode", "linear")), str(s.attribute("mode", "linear")))
    shape, sizes = s.tensor(0).shape or (), s.tensor(1).shape or ()
    space = [size for size in shape[2:] if isinstance(size, int)]
    wanted = [size if isinstance(size, int) else -1 for size in sizes[1:-1]]
    count = len(shape) - 2
    if len(space) != count or count < 2 or 0 in space or len(sizes) != count + 2 or wanted.count(-1) > 1 or s.tensor(1).dtype != "float32":
        raise NoDefinitionError("unknown sizes")
    if mode not in ("nearest", "linear", "cubic") or not isinstance(shape[1], int):
        raise NoDefinitionError(mode)
    align, padding = bool(s.attribute("align_corners", 0)), str(s.attribute("padding_mode", "zeros"))
    lines = [_Line(size, align, padding) for size in space]
    points = s("Reshape", s.input(1), [0, -1, count])
    taps = [_taps(s, line, s("Gather", points, np.int64(count - 1 - axis), axis=2), mode) for axis, line in enumerate(lines)]
    rows = s("Transpose", s("Reshape", s.x, [0, shape[1], math.prod(space)]), perm=[0, 2, 1])
    total = ""
    for chosen in itertools.product(*taps):
        place, weight = "", ""
        for (at, factor), size in zip(chosen, space, strict=True):
            place = s("Add", s("Mul", place, float(size)), at) if place else at
            weight = s("Mul", weight, factor) if weight and factor else weight or factor
        indices = s("Unsqueeze", s("Cast", place, to=ELEMENT_TYPES["int64"]), [-1])
        value = s("GatherND", rows, indices, batch_dims=1)
        value = s("Mul", value, s("Unsqueeze", weight, [-1])) if weight else value
        total = s("Add", total, value) if total else value
    s.end(s("Reshape", s("Transpose", total, perm=[0, 2, 1]), [0, shape[1], *wanted]))


def _taps(s: Decomposition, line: _Line, value: str, mode: str) -> list[tuple[str, str]]:
    """The elements around each position along one axis: their places, and the weight of each; "" for 1."""
    x = line.position(s, value)
    if mode == "nearest":
        return [line.place(s, s("Round", x))]
    x = x if mode == "cubic" else line.pad_position(s, x)  # of a cubic one each element is brought back by itself
    low = s("Floor", x)
    rest = s("Sub", x, low)
    weights = [s("Sub", s.number(1, 1), rest), rest] if mode == "linear" else _cubic(s, rest)
    first = 0 if mode == "linear" else -1
    found = []
    for step, weight in enumerate(weights, first):
        place, mask = line.place(s, s("Add", low, float(step)) if step else low)
        found.append((place, s("Mul", weight, mask) if mask else weight))
    return found


def _cubic(s: Decomposition, rest: str) -> list[str]:
    """Weights of the elements one before to two after a position, which lies `rest` after its own."""
    far, near = [_A, -5 * _A, 8 * _A, -4 * _A], [_A + 2, -(_A + 3), 0.0, 1.0]
    back = s("Sub", s.number(1, 1), rest)
    places = [(far, s("Add", rest, 1.0)), (near, rest), (near, back), (far, s("Add", back, 1.0))]
    return [_polynomial(s, terms, x) for terms, x in places]


def _polynomial(s: Decomposition, terms: list[float], x: str) -> str:
    value = s("Add", s("Mul", x, terms[0]), terms[1])
    for term in terms[2:]:
        value = s("Mul", value, x)
        value = s("Add", value, term) if term else value
    return value


def _col2im(s: Decomposition) -> None:
    """Blocks added up at their places in an image (ONNX Col2Im), which is padded, and loses its padding in the end."""
    batch, rows, columns = s.shape()
    size, block = ([int(value) for value in s.known(index).reshape(-1)] for index in (1, 2))
    count = len(size)
    strides, dilations = (list(s.attribute(name, None) or [1] * count) for name in ("strides", "dilations"))
    pads = list(s.attribute("pads", None) or [0] * 2 * count)
    whole = [n + pads[i] + pads[count + i] for i, n in enumerate(size)]
    steps = [(n - (b - 1) * d - 1) // k + 1 for n, b, d, k in zip(whole, block, dilations, strides, strict=True)]
    channels = rows // math.prod(block)
    if math.prod(steps) != columns or channels * math.prod(block) != rows:
        raise NoDefinitionError("sizes that do not fit")
    at = np.indices((*block, *steps))
    axes = [at[i] * dilations[i] + at[count + i] * strides[i] for i in range(count)]
    places = np.ravel_multi_index([axis.reshape(-1) for axis in axes], whole).reshape(-1, 1)
    parts = s("Transpose", s("Reshape", s.x, [batch * channels, math.prod(block) * columns]), perm=[1, 0])
    s.require_small(*whole, batch, channels)
    zeros = np.zeros((math.prod(whole), batch * channels), np.float32)
    total = s("ScatterND", zeros, places.astype(np.int64), parts, reduction="add")
    image = s("Reshape", s("Transpose", total, perm=[1, 0]), [batch, channels, *whole])
    if any(pads):
        ends = [pads[i] + size[i] for i in range(count)]
        image = s("Slice", image, pads[:count], ends, range(2, count + 2))
    s.end(image)


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
            value = s("Gather", value, np.clip(_round_positions(s, positions), 0, item.size - 1), axis=item.axis)
        else:
            value = _product(s, value, item, _weights(s, item, mode))
    s.end(value)


def _product(s: Decomposition, value: str, item: _Axis, weights: Array) -> str:
    """The data times weights (wanted, size) along an axis."""
    if s.tensor().dtype not in ("float32", "float64", "float16"):
        raise NoDefinitionError("integers between which nothing is interpolated")
    matrix, rank = weights.astype(numpy_dtype(s.tensor().dtype)), s.rank()
    if item.axis == rank - 1:
        return s("MatMul", value, matrix.T.copy())
    perm = [*(axis for axis in range(rank) if axis != item.axis), item.axis]
    turned = s("MatMul", s("Transpose", value, perm=perm), matrix.T.copy())
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


DEFINITIONS: Definitions = {
    **dict.fromkeys(("GridSample", "com.microsoft.GridSample"), _grid_sample),
    "Col2Im": _col2im,
    **dict.fromkeys(("Resize", "Upsample"), _resize),
}
