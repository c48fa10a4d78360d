"""What operators over space share: axes, windows, padding."""

from __future__ import annotations

from collections.abc import Sequence

from qconvert.arithmetic.dtypes import Array
from qconvert.graph.schema import Op, Shape
from qconvert.operators.call import Call
from qconvert.operators.sizes import UNKNOWN, Size, failure

__all__ = [
    "SAME",
    "axes_of_space",
    "block_size",
    "channel_count",
    "explicit_pads",
    "padding",
    "per_spatial_axis",
    "product_size",
    "quotient",
    "spatial_pads",
    "swapped_weights",
    "window_sizes",
    "with_spatial",
]

SAME = ("SAME_UPPER", "SAME_LOWER")


def axes_of_space(op: Op, shape: Shape) -> list[int]:
    """The spatial axes of data with the layout of `op`."""
    if len(shape) < 3:
        raise failure(op, f"data of shape {shape} have no spatial axis", rule="wrong-rank")
    return list(range(1, len(shape) - 1) if op["data_format"] == "channels_last" else range(2, len(shape)))


def channel_count(op: Op, shape: Shape) -> Size:
    return shape[-1] if op["data_format"] == "channels_last" else shape[1]


def with_spatial(op: Op, batch: Size, spatial: Sequence[Size], channels: Size) -> Shape:
    return (batch, *spatial, channels) if op["data_format"] == "channels_last" else (batch, channels, *spatial)


def per_spatial_axis(op: Op, name: str, count: int, least: int) -> list[int]:
    """The attribute `name`, which must have `count` values of at least `least`."""
    values = [int(value) for value in op[name]]
    if len(values) != count or min(values, default=least) < least:
        raise failure(op, f"{name} {tuple(values)} are not {count} values of at least {least}", rule="attribute-out-of-range")
    return values


def spatial_pads(op: Op, count: int) -> list[tuple[int, int]]:
    """What explicit padding adds before and after each spatial axis; an auto_pad other than NOTSET overrides it."""
    pads = explicit_pads(op, count)
    return pads if op["auto_pad"] == "NOTSET" else [(0, 0)] * count


def explicit_pads(op: Op, count: int) -> list[tuple[int, int]]:
    """The attribute pads: before and after each spatial axis."""
    pads = per_spatial_axis(op, "pads", 2 * count, 0)
    return [(pads[i], pads[count + i]) for i in range(count)]


def window_sizes(op: Op, sizes: Sequence[Size], taps: Sequence[Size], dilations: Sequence[int]) -> list[Size]:
    """Output sizes of a window that slides over `sizes`."""
    strides, pads = per_spatial_axis(op, "strides", len(sizes), 1), spatial_pads(op, len(sizes))
    return [_window(op, *each) for each in zip(sizes, taps, dilations, strides, pads, strict=True)]


def _window(op: Op, size: Size, taps: Size, dilation: int, stride: int, pad: tuple[int, int]) -> Size:
    """How often a window fits; with ceil_mode a last one may hang over, if it starts on data or on the leading padding."""
    if op["auto_pad"] in SAME:
        return size if stride == 1 else UNKNOWN if isinstance(size, str) else -(-size // stride)
    if isinstance(taps, str):
        return UNKNOWN
    reach, total = (taps - 1) * dilation + 1, sum(pad)
    if isinstance(size, str):
        return size if stride == 1 and total == reach - 1 else UNKNOWN
    if taps < 1 or size + total < reach:
        raise failure(op, f"a window of {reach} does not fit a size of {size} with padding of {total}", rule="window-too-large")
    if not op.attributes.get("ceil_mode"):
        return (size + total - reach) // stride + 1
    count = -(-(size + total - reach) // stride) + 1
    return count - 1 if (count - 1) * stride >= size + pad[0] else count


def quotient(op: Op, size: Size, divisor: int, what: str) -> Size:
    if isinstance(size, str):
        return size if divisor == 1 else UNKNOWN
    if size % divisor:
        raise failure(op, f"{what} of {size} is not divisible by {divisor}", rule="sizes-do-not-divide")
    return size // divisor


def product_size(size: Size, factor: int) -> Size:
    return size * factor if isinstance(size, int) else size if factor == 1 else UNKNOWN


def block_size(op: Op) -> int:
    block = int(op["blocksize"])
    if block < 1:
        raise failure(op, f"the block size is {block}; it must be at least 1", rule="not-positive")
    return block


def same_pads(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    """The padding of SAME_UPPER, before each spatial axis, then after each: the odd element goes to the end."""
    totals = []
    for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (taps - 1) * dilation + 1
        totals.append(max((-(-size // stride) - 1) * stride + reach - size, 0))
    return tuple(total // 2 for total in totals) + tuple(total - total // 2 for total in totals)


def stated_pads(call: Call | Op, sizes: Sequence[int], kernel: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    """The padding of a window in numbers, before each spatial axis, then after each."""
    count, mode = len(sizes), call["auto_pad"]
    if mode == "NOTSET":
        return tuple(call["pads"])
    same = same_pads(sizes, kernel, call["strides"], dilations) if mode != "VALID" else (0,) * 2 * count
    return (*same[count:], *same[:count]) if mode == "SAME_LOWER" else same


def padding(call: Call | Op, sizes: tuple[int, ...], kernel: tuple[int, ...], dilations: tuple[int, ...]) -> list[tuple[int, int]]:
    """Elements to pad before and after each spatial dimension."""
    pads, count = stated_pads(call, sizes, kernel, dilations), len(sizes)
    return list(zip(pads[:count], pads[count:], strict=True))


def swapped_weights(weights: Array, group: int) -> Array:
    """Weights of a transposed convolution, I,O/group,spatial, as O,I/group,spatial, and back."""
    if group == 1:
        return weights.swapaxes(0, 1)
    inputs, outputs = weights.shape[:2]
    split = weights.reshape(group, inputs // group, outputs, *weights.shape[2:]).swapaxes(1, 2)
    return split.reshape(group * outputs, inputs // group, *weights.shape[2:])
