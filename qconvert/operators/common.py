"""What the families share: attributes, shapes, and whether scales along an axis survive a move."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from qconvert.graph.activations import ACTIVATIONS
from qconvert.graph.schema import Op, Shape
from qconvert.operators.attributes import AttributeSpec, choice, flag, integers
from qconvert.operators.sizes import Result, ShapeContext, broadcast, normalize_axes

__all__ = ["ACTIVATION", "DATA_FORMAT", "KEEPDIMS", "WINDOW", "broadcast_shape", "same_axes", "same_shape", "unless_along", "without_axes"]

ACTIVATION: Mapping[str, AttributeSpec] = {"activation": choice(tuple(ACTIVATIONS), "")}
DATA_FORMAT: Mapping[str, AttributeSpec] = {"data_format": choice(("channels_first", "channels_last"))}
WINDOW: Mapping[str, AttributeSpec] = {
    "strides": integers(),
    "pads": integers(),
    "auto_pad": choice(("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), "NOTSET"),
    **DATA_FORMAT,
}
KEEPDIMS: Mapping[str, AttributeSpec] = {"keepdims": flag(1)}


def without_axes(op: Op, data: Shape, axes: list[int]) -> Shape:
    """`data` reduced along `axes`, which stay with size 1 if the operator keeps dimensions."""
    if op["keepdims"]:
        return tuple(1 if axis in axes else size for axis, size in enumerate(data))
    return tuple(size for axis, size in enumerate(data) if axis not in axes)


def broadcast_shape(op: Op, s: ShapeContext) -> Result:
    return [broadcast(op, [s.shape(i) for i in range(len(op.inputs))])]


def same_shape(op: Op, s: ShapeContext) -> Result:
    shape = s.shape(0)
    if shape is not None and "axis" in op.attributes:
        normalize_axes(op, [int(op["axis"])], len(shape))
    return [shape]


def along_axis(op: Op, s: ShapeContext) -> Result:
    """The shape of the data, which has the axis of the operator, stated or by default."""
    shape = s.shape(0)
    if shape is not None:
        normalize_axes(op, [int(op["axis"])], len(shape))
    return [shape]


def same_axes(op: Op, constant: Callable[[int], Any], before: Shape, after: Shape, a: int, b: int) -> bool:
    """The elements before the axis stay before it (Identity, Reshape, Squeeze, Unsqueeze)."""
    return _factors(before[:a]) == _factors(after[:b])


def _factors(sizes: Shape) -> tuple[int, Counter[str]]:
    numbers = math.prod(size for size in sizes if isinstance(size, int))
    return numbers, Counter(size for size in sizes if isinstance(size, str))


def unless_along(op: Op, constant: Callable[[int], Any], before: Shape, after: Shape, a: int, b: int) -> bool:
    """The operator works along another axis than the scales (Split, TopK)."""
    return a == b and int(op["axis"]) % len(before) != a
