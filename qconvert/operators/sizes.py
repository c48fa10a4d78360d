"""A shape rule's view of the graph, the arithmetic of sizes that may be dynamic, and the common parts of operators over space: axes,
windows, padding, and weights of convolutions without groups or holes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from qconvert.arithmetic.storage import Array, Quantization
from qconvert.errors import InvalidGraphError
from qconvert.graph.schema import Op, Shape, Tensor
from qconvert.operators.call import Call, spatial_axes

Size = int | str
Shapes = list[Shape | None]
#: What is known of the integers of a tensor that is computed at run time: numbers, names of sizes, UNKNOWN; None if nothing is.
Known = Callable[[str], Sequence[Size] | None]

#: A size that a rule knows nothing of. infer() names it after its tensor and axis.
UNKNOWN = "?"
MAX_RANK = 64

#: Elements that a constant may have where it stands for a shape, axes, pads or sizes.
_MOST_INTEGERS = 2**16


def reshape_sizes(shape: Iterable[int | str]) -> list[int]:
    """What a Reshape to a shape is given: -1 for a size that is known only when the model runs."""
    return [-1 if isinstance(size, str) else size for size in shape]


def failure(op: Op, reason: str, *, rule: str) -> InvalidGraphError:
    """The error for inputs or attributes that contradict each other."""
    return InvalidGraphError(reason, where=op.location, rule=rule)


def unknown_shapes(op: Op, s: ShapeContext) -> Shapes:
    """The rule of a kind that says nothing of its results."""
    return [None] * len(op.outputs)


class UnknownRankError(Exception):
    """A shape rule needs the shape of an input whose rank is not known; so the outputs' are not known either."""


class ShapeContext:
    """The inputs of one operator as its shape rule sees them."""

    def __init__(self, tensors: Mapping[str, Tensor], op: Op, known: Known | None = None) -> None:
        self._tensors = tensors
        self._op = op
        self._known = known

    def has(self, index: int) -> bool:
        """Whether input `index` is there."""
        return self._op.has(index)

    def shape(self, index: int) -> Shape | None:
        """The shape of input `index`; None if its rank is not known."""
        return self._tensors[self._op.inputs[index]].shape

    def known_shape(self, index: int) -> Shape:
        """The shape of input `index`; raises UnknownRankError, which leaves the outputs without shapes, if its rank is not known."""
        shape = self.shape(index)
        if shape is None:
            raise UnknownRankError
        return shape

    def constant(self, index: int) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
        """The data of input `index`; None if it is absent or computed at run time."""
        return self._tensors[self._op.inputs[index]].data if self.has(index) else None

    def ints(self, index: int) -> list[int] | None:
        """The integers of constant input `index`; None if it is absent or computed at run time."""
        data = self.constant(index)
        name = self._op.inputs[index] if self.has(index) else ""
        if data is None:
            found = self._known(name) if self._known is not None and name else None
            return None if found is None or not all(isinstance(size, int) for size in found) else [int(size) for size in found]
        if data.dtype.kind not in "iu" or data.ndim > 1:
            raise failure(self._op, f"input {name!r} of {data.dtype} and rank {data.ndim} is not a vector of integers", rule="not-integers")
        if data.size > _MOST_INTEGERS:
            raise failure(self._op, f"input {name!r} has {data.size} elements, more than any shape needs", rule="too-many-elements")
        return [int(value) for value in data.reshape(-1)]

    def sizes(self, index: int, count: int) -> list[Size]:
        """The `count` integers of input `index`, UNKNOWN where one is computed at run time.

        Raises:
            InvalidGraphError: it is computed, and its own shape is not that of so many integers.
        """
        known = self.ints(index)
        shape = self.shape(index) if known is None and self.has(index) else None
        if shape is not None and (len(shape) > 1 or (all(isinstance(size, int) for size in shape) and math.prod(map(int, shape)) != count)):
            raise failure(self._op, f"input {self._op.inputs[index]!r} of shape {shape} are not {count} integers", rule="counts-differ")
        found = self.unknowns(index) if known is None and self.has(index) else known
        return [UNKNOWN] * count if found is None or (known is None and len(found) != count) else list(found)

    def unknowns(self, index: int) -> Shape | None:
        """The shape that input `index`, computed at run time, will describe: its length is the rank."""
        shape = self.shape(index)
        if shape is None or len(shape) != 1 or isinstance(shape[0], str):
            return None
        if shape[0] > MAX_RANK:
            raise failure(self._op, f"input {self._op.inputs[index]!r} describes a shape of rank {shape[0]}", rule="rank-too-large")
        found = self._known(self._op.inputs[index]) if self._known is not None else None
        return (UNKNOWN,) * shape[0] if found is None else tuple(found)


Rule = Callable[[Op, ShapeContext], Shapes]


def normalize_axes(op: Op, axes: Iterable[int], rank: int) -> list[int]:
    """Possibly negative axes as ones from 0 to rank - 1, each once."""
    found = list(axes)
    for axis in found:
        if not -rank <= axis < rank:
            raise failure(op, f"axis {axis} is outside rank {rank}", rule="axis-out-of-range")
    result = [axis % rank for axis in found]
    if len(set(result)) != len(result):
        raise failure(op, f"axes {found} name an axis twice", rule="duplicate-axis")
    return result


def stated_axis(op: Op, rank: int) -> int:
    """The attribute `axis` as one from 0 to rank - 1."""
    return normalize_axes(op, [int(op["axis"])], rank)[0]


def unify_sizes(op: Op, sizes: Sequence[Size], what: str) -> Size:
    """The one size that all must be: a number if any is one, else their common name, else UNKNOWN."""
    numbers = {size for size in sizes if isinstance(size, int)}
    if len(numbers) > 1:
        raise failure(op, f"{what} differ: {', '.join(map(str, sizes))}", rule="sizes-differ")
    if numbers:
        return numbers.pop()
    return sizes[0] if len(set(sizes)) == 1 else UNKNOWN


def is_compatible(a: Shape | None, b: Shape | None) -> bool:
    """Whether two shapes can be of one tensor: equal rank, and equal numbers wherever both have numbers."""
    if a is None or b is None or a == b:
        return True
    return len(a) == len(b) and all(x == y or isinstance(x, str) or isinstance(y, str) for x, y in zip(a, b, strict=True))


def factors_of_sizes(sizes: Sequence[Size]) -> tuple[int, Counter[str]]:
    """The product of the sizes that are numbers, and how often each name occurs."""
    return math.prod(size for size in sizes if isinstance(size, int)), Counter(size for size in sizes if isinstance(size, str))


def broadcast(op: Op, shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape that all broadcast to, by the rule of numpy and ONNX.

    A name next to a number other than 1 must be that number or 1, so the result is the number.
    """
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    rank = max(map(len, known), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    result: list[Size] = []
    for sizes in zip(*padded, strict=True):
        wide = {size for size in sizes if size != 1}
        numbers = {size for size in wide if isinstance(size, int)}
        if len(numbers) > 1:
            raise failure(op, f"shapes {' and '.join(map(str, known))} do not broadcast", rule="not-broadcastable")
        result.append(numbers.pop() if numbers else 1 if not wide else wide.pop() if len(wide) == 1 else UNKNOWN)
    return tuple(result)


SAME = ("SAME_UPPER", "SAME_LOWER")


def axes_of_space(op: Op, shape: Shape) -> list[int]:
    """The spatial axes of data with the layout of `op`."""
    if len(shape) < 3:
        raise failure(op, f"data of shape {shape} have no spatial axis", rule="wrong-rank")
    return list(spatial_axes(op, len(shape)))


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


def explicit_pads(op: Op, count: int) -> list[tuple[int, int]]:
    """The attribute pads: before and after each spatial axis."""
    pads = per_spatial_axis(op, "pads", 2 * count, 0)
    return [(pads[i], pads[count + i]) for i in range(count)]


def window_sizes(op: Op, sizes: Sequence[Size], taps: Sequence[Size], dilations: Sequence[int]) -> list[Size]:
    """Output sizes of a window that slides over `sizes`; an auto_pad other than NOTSET overrides explicit padding."""
    strides, pads = per_spatial_axis(op, "strides", len(sizes), 1), explicit_pads(op, len(sizes))
    pads = pads if op["auto_pad"] == "NOTSET" else [(0, 0)] * len(sizes)
    return [_window(op, *each) for each in zip(sizes, taps, dilations, strides, pads, strict=True)]


def _window(op: Op, size: Size, taps: Size, dilation: int, stride: int, pad: tuple[int, int]) -> Size:
    """How often a window fits; with ceil_mode a last one may hang over, if it starts on data or on the leading padding."""
    if op["auto_pad"] in SAME:
        return size if stride == 1 else UNKNOWN if isinstance(size, str) else -(-size // stride)
    if isinstance(taps, str):
        return UNKNOWN
    extent, total = window_extent(taps, dilation), sum(pad)
    if isinstance(size, str):
        return size if stride == 1 and total == extent - 1 else UNKNOWN
    if taps < 1 or size + total < extent:
        raise failure(op, f"a window of {extent} does not fit a size of {size} with padding of {total}", rule="window-too-large")
    if not op.attributes.get("ceil_mode"):
        return (size + total - extent) // stride + 1
    count = -(-(size + total - extent) // stride) + 1
    return count - 1 if (count - 1) * stride >= size + pad[0] else count


def window_extent(taps: int, dilation: int) -> int:
    """How many elements a window spans along an axis, from its first tap to its last one."""
    return (taps - 1) * dilation + 1


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
        totals.append(max((-(-size // stride) - 1) * stride + window_extent(taps, dilation) - size, 0))
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


def swapped_scales(quantization: Quantization, group: int, outputs: int) -> Quantization | None:
    """The quantization of swapped_weights() of weights I,O/group,spatial; None if scales of inputs differ within several groups.

    Args:
        quantization: of the weights, with scales along axis 0 or 1 or for the whole tensor.
        group: the number of groups.
        outputs: O/group, the outputs of each group.
    """
    if quantization.axis is None:
        return quantization
    scale, zero_point = quantization.scale, quantization.zero_point
    if quantization.block_size or quantization.axis > 1:
        return None
    if quantization.axis == 1:
        return Quantization(np.tile(scale, group), np.tile(zero_point, group), 0)
    if (scale == scale[0]).all() and (zero_point == zero_point[0]).all():
        return Quantization.per_tensor(quantization.step, quantization.point)
    if len(scale) == group:  # one input a group: its scale is that of the group's outputs
        return Quantization(np.repeat(scale, outputs), np.repeat(zero_point, outputs), 0)
    return Quantization(scale, zero_point, 1) if group == 1 else None


def spread_weights(weights: Tensor, group: int, dilations: tuple[int, ...]) -> Array:
    """Weights O,I/group,spatial as O,I,spatial without groups or holes."""
    data = weights.data
    assert data is not None
    rows, depth = data.shape[:2]
    spans = [(taps - 1) * step + 1 if taps else 0 for taps, step in zip(data.shape[2:], dilations, strict=True)]
    zero: Array = np.zeros(1, data.dtype)
    if weights.quantization is not None:
        zero = np.asarray(weights.quantization.zero_point).astype(data.dtype)
    dense = np.empty((rows, depth * group, *spans), data.dtype)
    dense[...] = zero.reshape(-1, *[1] * (data.ndim - 1))
    taps = tuple(slice(None, None, step) for step in dilations)
    for number, part in enumerate(np.split(data, group)):
        of_group = slice(number * (rows // group), (number + 1) * (rows // group))
        dense[(of_group, slice(number * depth, (number + 1) * depth), *taps)] = part
    return dense
