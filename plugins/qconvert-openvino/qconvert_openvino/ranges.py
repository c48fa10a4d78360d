"""Conversion between FakeQuantize's ranges and levels, and scale, zero point and storage type.

FakeQuantize with equal input and output ranges gives low + k * (high - low) / (levels - 1) for k = 0 … levels - 1, the nearest of them to
each value (https://docs.openvino.ai, operation FakeQuantize-1). With the quantization of a scale and a zero point, low is
scale * (smallest integer - zero point) and high scale * (largest integer - zero point).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qconvert.plugin import Array, Quantization, UnsupportedError
from qconvert_openvino.container import Node

#: How far a zero point may be from an integer, in steps. Ranges in float32 are off by 256 * 2^-24 at most.
_OFF = 1e-3
#: Neighbours in float32 that are tried on each side for a range with exactly the scale.
_NEAR = 3
_MOST_LEVELS = 2**16
_WIDTHS = ((4, "int4", "uint4"), (8, "int8", "uint8"), (16, "int16", "uint16"))


@dataclass(frozen=True, slots=True)
class FakeQuantize:
    """Bounds of a FakeQuantize as float32, per tensor or per index along an axis, and its number of levels."""

    low: Array
    high: Array
    levels: int


def ranges_of(q: Quantization, dtype: str) -> FakeQuantize:
    """Return the bounds of a quantization; quantization_of() returns exactly its scale if neighbours in float32 permit it.

    Args:
        q: per tensor or per axis.
        dtype: the storage type, of 4, 8 or 16 bits.
    """
    smallest, largest = q.limits(dtype)
    pairs = [_bounds(np.float32(scale), int(point), smallest, largest) for scale, point in zip(q.scale, q.zero_point, strict=True)]
    low, high = (np.array(side, np.float32) for side in zip(*pairs, strict=True))
    return FakeQuantize(low, high, largest - smallest + 1)


def _bounds(scale: np.float32, point: int, smallest: int, largest: int) -> tuple[np.float32, np.float32]:
    """Return the pair of bounds next to the exact ones that has the scale; the exact ones, rounded, if none has."""
    exact = [float(scale) * (limit - point) for limit in (smallest, largest)]
    sides = [_neighbours(np.float32(bound)) for bound in exact]
    found = [(abs(float(low) - exact[0]) + abs(float(high) - exact[1]), low, high)
             for low in sides[0] for high in sides[1] if _step(low, high, largest - smallest + 1) == scale]  # fmt: skip
    return min(found)[1:] if found else (np.float32(exact[0]), np.float32(exact[1]))


def _neighbours(bound: np.float32) -> list[np.float32]:
    """Return the bound and its neighbours in float32; only zero for zero."""
    found = [bound]
    for toward in (-np.inf, np.inf):
        value = bound
        for _ in range(_NEAR if bound else 0):
            value = np.nextafter(value, np.float32(toward))
            found.append(value)
    return found


def _step(low: np.float32, high: np.float32, levels: int) -> np.float32:
    return np.float32((float(high) - float(low)) / (levels - 1))


def quantization_of(fake: FakeQuantize, axis: int | None, noted: tuple[str, Quantization] | None = None) -> tuple[str, Quantization]:
    """Return the storage type and the quantization of a FakeQuantize.

    Args:
        fake: its bounds and levels.
        axis: the axis of its bounds; None for one pair.
        noted: type and quantization in the file's metadata, used only if they have exactly these bounds: notes may be stale.

    Returns:
        The noted ones; else signed integers if zero is the middle level, unsigned ones otherwise.

    Raises:
        UnsupportedError: the bounds are no range, or zero is not a level.
    """
    if noted is not None and noted[1].axis == axis and _is_written_as(fake, noted):
        return noted
    low, high = fake.low.astype(np.float64), fake.high.astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise UnsupportedError("has bounds that are not finite or not in order", rule="range-not-finite")
    scale = np.asarray((high - low) / (fake.levels - 1), np.float32)
    points = -low / ((high - low) / (fake.levels - 1))
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise UnsupportedError("has a step that is not a positive float32", rule="scale-not-positive")
    if (np.abs(points - np.rint(points)) > _OFF * np.maximum(1, np.abs(points) / 256)).any() or (np.abs(points) > 2**30).any():
        raise UnsupportedError("has bounds between which no level is zero, so that there is no zero point", rule="zero-not-a-level")
    points = np.rint(points).astype(np.int64)
    return _choose_storage(scale, points, axis, fake.levels)


def _choose_storage(scale: Array, points: Array, axis: int | None, levels: int) -> tuple[str, Quantization]:
    """Return the narrowest type of 4, 8 or 16 bits for the levels, and the quantization, with limits if there are fewer levels."""
    for bits, signed, unsigned in _WIDTHS:
        if levels <= 2**bits:
            dtype, smallest = (signed, -(levels // 2)) if (points == levels // 2).all() else (unsigned, 0)
            if dtype == signed and levels % 2:  # symmetric, without the smallest integer: -127 … 127
                smallest = -((levels - 1) // 2)
            return dtype, Quantization(scale, points + smallest, axis).with_limits(dtype, smallest, smallest + levels - 1)
    raise UnsupportedError(f"has {levels} levels, more than 16 bits hold", rule="too-many-levels")


def _is_written_as(fake: FakeQuantize, noted: tuple[str, Quantization]) -> bool:
    """Return whether a quantization is written as these bounds."""
    dtype, q = noted
    try:
        written = ranges_of(q, dtype)
    except (KeyError, ValueError, OverflowError):
        return False
    return written.levels == fake.levels and np.array_equal(written.low, fake.low) and np.array_equal(written.high, fake.high)


@dataclass(frozen=True, slots=True)
class Stated:
    """The input and output bounds of a FakeQuantize, along one axis or none."""

    taken: FakeQuantize
    given: FakeQuantize
    axis: int | None

    @property
    def is_plain(self) -> bool:
        """Whether it only rounds to a quantization: both pairs of bounds are equal."""
        return np.array_equal(self.taken.low, self.given.low) and np.array_equal(self.taken.high, self.given.high)


def fake_quantize_of(node: Node) -> Stated | None:
    """Return the bounds; None if they are computed, not finite, or along several axes."""
    sources = [source for source, _ in node.inputs[1:]]
    levels = node.attributes.get("levels", "")
    if len(sources) != 4 or not levels.isdecimal() or not 2 <= int(levels) <= _MOST_LEVELS:
        return None
    bounds: list[Array] = []
    for source in sources:
        data = _value_of(source)
        if data is None:
            return None
        bounds.append(np.asarray(data, np.float32))
    rank = len(next(iter(node.ports.values())).shape)
    axes = {axis + rank - data.ndim for data in bounds for axis, size in enumerate(data.shape) if size > 1}
    if len(axes) > 1 or min(axes, default=0) < 0:
        return None
    sizes = {data.size for data in bounds if data.size != 1}
    if len(sizes) > 1 or any(not data.size for data in bounds):
        return None
    count = next(iter(sizes), 1)
    low, high, out_low, out_high = (np.array(np.broadcast_to(data.reshape(-1), (count,))) for data in bounds)
    if not all(np.isfinite(data).all() for data in (low, high, out_low, out_high)):
        return None
    return Stated(FakeQuantize(low, high, int(levels)), FakeQuantize(out_low, out_high, int(levels)), next(iter(axes), None))


def _value_of(node: Node) -> Array | None:
    """Return a constant, also after a Convert between float types (constants stored as float16); None otherwise."""
    while node.type == "Convert" and node.inputs and node.attributes.get("destination_type") in ("f32", "f16"):
        node = node.inputs[0][0]
    return node.data
