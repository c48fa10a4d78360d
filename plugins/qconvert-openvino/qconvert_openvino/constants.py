"""Constants after Convert, Subtract, Multiply, FakeQuantize and data movement: their integers, scales and zero points.

Files have compressed weights as Const (integers) -> Convert -> Subtract (zero points) -> Multiply (scales) -> Reshape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from qconvert.plugin import Array, Quantization, UnsupportedError, fits_dtype, numpy_dtype
from qconvert_openvino.container import Node
from qconvert_openvino.elements import DTYPES
from qconvert_openvino.ranges import fake_quantize_of, quantization_of

_REALS = ("float16", "bfloat16", "float32", "float64")
_WIDE = ("int32", "uint32", "int64", "uint64")
_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the file.

    Attributes:
        name: of the Const.
        dtype: of `data`.
        data: integers if there is a scale, else the values.
        scale, point: float32 and int64, each of the shape of `data` (broadcast views), or None.
        limits: the smallest and largest integer that a FakeQuantize with few levels allows, or None.
    """

    name: str
    dtype: str
    data: Array
    scale: Array | None = None
    point: Array | None = None
    limits: tuple[int | None, int | None] = (None, None)

    @property
    def quantization(self) -> Quantization | None:
        """The quantization: per tensor, per axis, or in blocks.

        Raises:
            UnsupportedError: scales run along several axes.
        """
        if self.scale is None or self.point is None:
            return None
        found = quantization_along(self.scale, self.point)
        return replace(found, quant_min=self.limits[0], quant_max=self.limits[1])

    @property
    def is_plain(self) -> bool:
        """Whether its values are the stored numbers, possibly after a Convert."""
        return self.scale is None or (bool((self.scale == 1).all()) and not np.any(self.point))

    @property
    def without_unit_scale(self) -> Constant:
        """The constant in float32 if it is integers of 32 or 64 bits after only a Convert; otherwise unchanged."""
        if self.scale is None or self.dtype not in _WIDE or not self.is_plain:
            return self
        return Constant(self.name, "float32", self.data.astype(np.float32))

    def reshape(self, shape: tuple[int, ...]) -> Constant:
        return self._map_arrays(lambda values: values.reshape(shape))

    def transpose(self, perm: tuple[int, ...]) -> Constant:
        return self._map_arrays(lambda values: values.transpose(perm))

    def _map_arrays(self, function: Callable[[Array], Array]) -> Constant:
        scale, point = (None if side is None else function(side) for side in (self.scale, self.point))
        return replace(self, data=function(self.data), scale=scale, point=point)


def constant_of(node: Node, depth: int = 0) -> Constant | None:
    """Return the result of a layer if it is a constant, with scales and zero points as the only arithmetic; None otherwise."""
    if node.type == "Const":
        assert node.data is not None
        return Constant(node.name, DTYPES[node.attributes["element_type"]], node.data)
    if node.type not in ("Convert", "Subtract", "Multiply", "Reshape", "Transpose", "FakeQuantize") or depth == _DEEPEST:
        return None
    read = node.inputs[:1] if node.type == "Reshape" else node.inputs  # a Reshape has the sizes of its result
    given: list[Constant] = []
    for source, _ in read:
        item = constant_of(source, depth + 1)
        if item is None:  # without a look at the others: a layer may read one result twice, and so on
            return None
        given.append(item)
    if not given:
        return None
    first, *rest = given
    if node.type == "Convert":
        return _apply_convert(first, DTYPES.get(node.attributes.get("destination_type", ""), ""))
    if node.type == "Reshape":
        shape = next(iter(node.ports.values())).shape
        return first.reshape(shape) if -1 not in shape and math.prod(shape) == first.data.size else None
    if node.type == "Transpose":
        order = rest[0].data.reshape(-1).tolist() if rest else []
        perm = tuple(int(axis) for axis in order) or tuple(range(first.data.ndim))[::-1]
        return first.transpose(perm) if sorted(perm) == [*range(first.data.ndim)] else None
    if node.type == "FakeQuantize":
        return _apply_fake_quantize(node, first) if first.scale is None and first.dtype in _REALS else None
    if len(rest) != 1:
        return None
    return _apply_subtract(first, rest[0]) if node.type == "Subtract" else _apply_multiply(first, rest[0])


def _apply_convert(item: Constant, dtype: str) -> Constant | None:
    """Apply a Convert to floats; None where that is no step of a dequantization.

    Integers and floats of 8 bits get the scale 1, a scaled constant stays the same in another float type.
    """
    if dtype in _REALS and (item.scale is not None or "int" in item.dtype or item.dtype.startswith("float8")):
        return replace(item, scale=item.scale if item.scale is not None else _repeat_value(np.float32(1), item), point=_points(item))
    if item.scale is not None or dtype not in DTYPES.values():
        return None
    return replace(item, dtype=dtype, data=item.data.astype(numpy_dtype(dtype)))


def _repeat_value(value: np.float32 | np.int64, item: Constant) -> Array:
    return np.broadcast_to(np.asarray(value), item.data.shape)


def _points(item: Constant) -> Array:
    return item.point if item.point is not None else _repeat_value(np.int64(0), item)


def _float_values(item: Constant) -> Array:
    """Return the values of a constant, float64: scales or zero points."""
    if item.scale is None:
        return item.data.astype(np.float64)
    assert item.point is not None
    return np.asarray((item.data.astype(np.float64) - item.point) * item.scale)


def _broadcast_values(item: Constant, values: Array) -> Array | None:
    try:
        return np.broadcast_to(values, item.data.shape)
    except ValueError:
        return None


def _apply_subtract(item: Constant, other: Constant) -> Constant | None:
    """Apply a Subtract between Convert and Multiply: the zero points."""
    values = _float_values(other)
    if item.scale is None or "int" not in item.dtype or not (item.scale == 1).all() or _points(item).any():
        return None
    if not np.isfinite(values).all() or (values != np.rint(values)).any() or np.abs(values).max(initial=0) > 2**31:
        return None
    spread = _broadcast_values(item, values.astype(np.int64))
    return None if spread is None else replace(item, point=spread)


def _apply_multiply(item: Constant, other: Constant) -> Constant | None:
    """Apply a Multiply after Convert and Subtract: the scales."""
    if item.scale is None and other.scale is not None:
        item, other = other, item
    if item.scale is None or not (item.scale == 1).all():
        return None
    scales = _float_values(other).astype(np.float32)
    if not (np.isfinite(scales).all() and (scales != 0).all()):
        return None
    spread = _broadcast_values(item, scales)
    if spread is None:
        return None
    return replace(item, scale=spread) if (scales > 0).all() else _flip_negative_scales(item, spread, np.abs(scales))


def _flip_negative_scales(item: Constant, spread: Array, sizes: Array) -> Constant | None:
    """Make negative scales positive, with negated integers and zero points; int8 if 4 bits lack 8. Compressors use such scales for -8."""
    if "int" not in item.dtype:
        return None
    signs = np.where(spread < 0, -1, 1)
    data, point = item.data.astype(np.int64) * signs, _points(item) * signs
    dtype = next((name for name in (item.dtype, "int8", "int16") if fits_dtype(data, name)), "")
    scale = _broadcast_values(item, sizes)
    return (
        None if not dtype or scale is None else replace(item, dtype=dtype, data=data.astype(numpy_dtype(dtype)), scale=scale, point=point)
    )


def _apply_fake_quantize(node: Node, item: Constant) -> Constant | None:
    """Apply a FakeQuantize to float weights: the integers, computed in float32 as by OpenVINO."""
    stated = fake_quantize_of(node)
    if stated is None or not stated.is_plain:
        return None
    fake, axis = stated.taken, stated.axis
    dtype, q = quantization_of(fake, axis)
    shape = [1] * item.data.ndim
    if axis is not None:
        shape[axis] = -1
    low, high = fake.low.reshape(shape), fake.high.reshape(shape)
    steps = np.rint((np.clip(item.data.astype(np.float32), low, high) - low) / (high - low) * np.float32(fake.levels - 1))
    smallest = q.limits(dtype)[0]
    data = (steps.astype(np.int64) + smallest).astype(numpy_dtype(dtype))
    scale, point = (np.broadcast_to(side.reshape(shape), data.shape) for side in (q.scale, q.zero_point))
    return Constant(item.name, dtype, data, scale, point, (q.quant_min, q.quant_max))


def quantization_along(scale: Array, point: Array) -> Quantization:
    """Return the quantization of scales and zero points of each element: per tensor, per axis, or in blocks along one axis.

    Raises:
        UnsupportedError: they are none of these.
    """
    if not scale.size:
        raise UnsupportedError("a constant without elements has scales", rule="empty-tensor")
    stated = [axis for axis in range(scale.ndim) if scale.shape[axis] > 1 and (scale.strides[axis] or point.strides[axis])]
    axes = stated if len(stated) == 1 else [axis for axis in stated if _varies(scale, axis) or _varies(point, axis)]
    if not axes:
        return Quantization(np.array([scale.flat[0]], np.float32), np.array([point.flat[0]], np.int64))
    if len(axes) == 1:
        at = tuple(slice(None) if axis == axes[0] else 0 for axis in range(scale.ndim))
        is_broadcast = len(stated) == 1 and scale.size > scale.shape[axes[0]]  # one for each index, even where neighbours are equal
        if is_broadcast or scale.ndim == 1 or _common_block(scale, point, axes[0]) == 1:
            return Quantization(scale[at].copy(), point[at].copy(), axes[0])
    for axis in axes[::-1]:
        block = _common_block(scale, point, axis)
        if block > 1:
            firsts = tuple(slice(None, None, block if other == axis else 1) for other in range(scale.ndim))
            return Quantization(scale[firsts].copy(), point[firsts].copy(), axis, block)
    raise UnsupportedError("has scales along several axes, which are not covered", rule="several-axes")


def _varies(values: Array, axis: int) -> bool:
    return values.strides[axis] != 0 and bool((values != values.take([0], axis)).any())


def _common_block(scale: Array, point: Array, axis: int) -> int:
    return math.gcd(_block(scale, axis), _block(point, axis))


def _block(values: Array, axis: int) -> int:
    """Return the largest divisor of an axis' size such that all blocks of this many neighbours are equal."""
    size = int(values.shape[axis])
    if not _varies(values, axis):
        return size
    before, after = (values.take(range(start, size - 1 + start), axis) for start in (0, 1))
    others = tuple(other for other in range(values.ndim) if other != axis)
    changes = np.flatnonzero((before != after).any(axis=others)) + 1
    block: int = math.gcd(size, *map(int, changes))
    return block
