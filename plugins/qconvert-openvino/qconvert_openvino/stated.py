"""The bounds of a FakeQuantize in a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qconvert.plugin import Array
from qconvert_openvino.container import Node
from qconvert_openvino.ranges import FakeQuantize

_MOST_LEVELS = 2**16


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
