"""Definitions of operators that read or write data at places: GridSample, Col2Im."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definition, NoDefinitionError
from qconvert.formats.onnx.initializers import ELEMENT_TYPES

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
    points = s("Reshape", s.input(1), s.ints(0, -1, count))
    taps = [_taps(s, line, s("Gather", points, s.const(np.int64(count - 1 - axis)), axis=2), mode) for axis, line in enumerate(lines)]
    rows = s("Transpose", s("Reshape", s.x, s.ints(0, shape[1], math.prod(space))), perm=[0, 2, 1])
    total = ""
    for chosen in itertools.product(*taps):
        place, weight = "", ""
        for (at, factor), size in zip(chosen, space, strict=True):
            place = s("Add", s("Mul", place, float(size)), at) if place else at
            weight = s("Mul", weight, factor) if weight and factor else weight or factor
        indices = s("Unsqueeze", s("Cast", place, to=ELEMENT_TYPES["int64"]), s.ints(-1))
        value = s("GatherND", rows, indices, batch_dims=1)
        value = s("Mul", value, s("Unsqueeze", weight, s.ints(-1))) if weight else value
        total = s("Add", total, value) if total else value
    s.end(s("Reshape", s("Transpose", total, perm=[0, 2, 1]), s.ints(0, shape[1], *wanted)))


def _taps(s: Decomposition, line: _Line, value: str, mode: str) -> list[tuple[str, str]]:
    """The elements around each position along one axis: their places, and the weight of each; "" for 1."""
    x = line.position(s, value)
    if mode == "nearest":
        return [line.place(s, s("Round", x))]
    x = x if mode == "cubic" else line.pad_position(s, x)  # of a cubic one each element is brought back by itself
    low = s("Floor", x)
    rest = s("Sub", x, low)
    weights = _linear(s, rest) if mode == "linear" else _cubic(s, rest)
    first = 0 if mode == "linear" else -1
    found = []
    for step, weight in enumerate(weights, first):
        place, mask = line.place(s, s("Add", low, float(step)) if step else low)
        found.append((place, s("Mul", weight, mask) if mask else weight))
    return found


def _linear(s: Decomposition, rest: str) -> list[str]:
    return [s("Sub", s.number(1, 1), rest), rest]


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
    parts = s("Transpose", s("Reshape", s.x, s.ints(batch * channels, math.prod(block) * columns)), perm=[1, 0])
    s.require_small(*whole, batch, channels)
    zeros = s.const(np.zeros((math.prod(whole), batch * channels), np.float32))
    total = s("ScatterND", zeros, s.const(places.astype(np.int64)), parts, reduction="add")
    image = s("Reshape", s("Transpose", total, perm=[1, 0]), s.ints(batch, channels, *whole))
    if any(pads):
        ends = [pads[i] + size[i] for i in range(count)]
        image = s("Slice", image, s.ints(*pads[:count]), s.ints(*ends), s.ints(*range(2, count + 2)))
    s.end(image)


DEFINITIONS: dict[str, Definition] = {"GridSample": _grid_sample, "com.microsoft.GridSample": _grid_sample, "Col2Im": _col2im}
