"""Shapes of operators over space: convolutions, pools, resizing, and moves between space, depth and batch.

Formulas: ONNX operators Conv, ConvTranspose, AveragePool (opset 22), SpaceToDepth, DepthToSpace (opset 13);
TensorFlow's space_to_batch_nd and batch_to_space_nd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qconvert.graph import Op, Shape
from qconvert.graph.shapes.context import UNKNOWN, Result, Rule, ShapeContext, Size, failure, unified

__all__ = ["RULES"]

_SAME = ("SAME_UPPER", "SAME_LOWER")


def _axes(op: Op, shape: Shape) -> list[int]:
    """The spatial axes of data with the layout of `op`."""
    if len(shape) < 3:
        raise failure(op, f"data of shape {shape} have no spatial axis")
    return list(range(1, len(shape) - 1) if op["data_format"] == "channels_last" else range(2, len(shape)))


def _channels(op: Op, shape: Shape) -> Size:
    return shape[-1] if op["data_format"] == "channels_last" else shape[1]


def _with(op: Op, batch: Size, spatial: Sequence[Size], channels: Size) -> Shape:
    return (batch, *spatial, channels) if op["data_format"] == "channels_last" else (batch, channels, *spatial)


def _per_axis(op: Op, name: str, count: int, least: int) -> list[int]:
    """The attribute `name`, which must have `count` values of at least `least`."""
    values = [int(value) for value in op[name]]
    if len(values) != count or min(values, default=least) < least:
        raise failure(op, f"{name} {tuple(values)} are not {count} values of at least {least}")
    return values


def _pads(op: Op, count: int) -> list[tuple[int, int]]:
    """What explicit padding adds in front of and behind each spatial axis; an auto_pad other than NOTSET overrides it."""
    pads = _per_axis(op, "pads", 2 * count, 0)
    return [(pads[i], pads[count + i]) if op["auto_pad"] == "NOTSET" else (0, 0) for i in range(count)]


def _windows(op: Op, sizes: Sequence[Size], taps: Sequence[Size], dilations: Sequence[int]) -> list[Size]:
    """Output sizes of a window that slides over `sizes`."""
    strides, pads = _per_axis(op, "strides", len(sizes), 1), _pads(op, len(sizes))
    return [_window(op, *each) for each in zip(sizes, taps, dilations, strides, pads, strict=True)]


def _window(op: Op, size: Size, taps: Size, dilation: int, stride: int, pad: tuple[int, int]) -> Size:
    """How often a window fits; with ceil_mode a last one may hang over, if it starts on data or on the leading padding."""
    if op["auto_pad"] in _SAME:
        return size if stride == 1 else UNKNOWN if isinstance(size, str) else -(-size // stride)
    if isinstance(taps, str):
        return UNKNOWN
    reach, total = (taps - 1) * dilation + 1, sum(pad)
    if isinstance(size, str):
        return size if stride == 1 and total == reach - 1 else UNKNOWN
    if taps < 1 or size + total < reach:
        raise failure(op, f"a window of {reach} does not fit a size of {size} with padding of {total}")
    if not op.attributes.get("ceil_mode"):
        return (size + total - reach) // stride + 1
    count = -(-(size + total - reach) // stride) + 1
    return count - 1 if (count - 1) * stride >= size + pad[0] else count


def _operands(op: Op, s: ShapeContext) -> tuple[Shape, Shape] | None:
    """Data and weights (O,I,spatial) of a convolution, checked with the groups and the bias."""
    data, weights = s.shape(0), s.shape(1)
    has_bias = op.kind != "ConvInteger" and s.has(2)
    if weights is not None and has_bias and (bias := s.shape(2)) is not None:
        if len(bias) != 1:
            raise failure(op, f"the bias has shape {bias}, not one value for each output channel")
        unified(op, [bias[0], weights[0]], "the sizes of bias and output channels")
    if data is None or weights is None:
        return None
    _axes(op, data)
    if len(weights) != len(data):
        raise failure(op, f"weights of shape {weights} do not fit data of shape {data}")
    channels, depth, group = _channels(op, data), weights[1], int(op["group"])
    if group < 1 or (isinstance(weights[0], int) and weights[0] % group):
        raise failure(op, f"{weights[0]} output channels do not divide into {group} groups")
    if isinstance(channels, int) and isinstance(depth, int) and channels != depth * group:
        raise failure(op, f"{channels} input channels are not {group} groups of {depth}")
    return data, weights


def _conv(op: Op, s: ShapeContext) -> Result:
    operands = _operands(op, s)
    if operands is None:
        return [None]
    data, weights = operands
    axes = _axes(op, data)
    sizes = _windows(op, [data[axis] for axis in axes], weights[2:], _per_axis(op, "dilations", len(axes), 1))
    return [_with(op, data[0], sizes, weights[0])]


def _conv_transpose(op: Op, s: ShapeContext) -> Result:
    operands = _operands(op, s)
    if operands is None:
        return [None]
    data, weights = operands
    axes = _axes(op, data)
    strides, pads = _per_axis(op, "strides", len(axes), 1), _pads(op, len(axes))
    dilations, extra = _per_axis(op, "dilations", len(axes), 1), _per_axis(op, "output_padding", len(axes), 0)
    sizes: list[Size] = []
    for i, axis in enumerate(axes):
        size, taps = data[axis], weights[2 + i]
        if op["auto_pad"] in _SAME:
            sizes.append(size * strides[i] if isinstance(size, int) else size if strides[i] == 1 else UNKNOWN)
        elif isinstance(size, str) or isinstance(taps, str):
            sizes.append(UNKNOWN)
        else:
            full = (size - 1) * strides[i] + (taps - 1) * dilations[i] + 1 + extra[i]
            if full < sum(pads[i]):
                raise failure(op, f"a crop of {sum(pads[i])} is larger than the {full} positions there are")
            sizes.append(full - sum(pads[i]))
    return [_with(op, data[0], sizes, weights[0])]


def _pool(op: Op, s: ShapeContext) -> Result:
    data = s.shape(0)
    if data is None:
        return [None]
    axes = _axes(op, data)
    kernel = _per_axis(op, "kernel_shape", len(axes), 1)
    dilations = _per_axis(op, "dilations", len(axes), 1) if op.attributes.get("dilations") else [1] * len(axes)
    sizes = _windows(op, [data[axis] for axis in axes], kernel, dilations)
    return [_with(op, data[0], sizes, _channels(op, data))]


def _global_pool(op: Op, s: ShapeContext) -> Result:
    data = s.shape(0)
    return [None if data is None else _with(op, data[0], [1] * len(_axes(op, data)), _channels(op, data))]


def _resize(op: Op, s: ShapeContext) -> Result:
    data, sizes = s.shape(0), s.ints(1)
    if data is None:
        return [None]
    count = len(_axes(op, data))
    if sizes is not None and (len(sizes) != count or min(sizes, default=1) < 1):
        raise failure(op, f"sizes {sizes} are not {count} positive numbers")
    return [_with(op, data[0], [UNKNOWN] * count if sizes is None else sizes, _channels(op, data))]


def _quotient(op: Op, size: Size, divisor: int, what: str) -> Size:
    if isinstance(size, str):
        return size if divisor == 1 else UNKNOWN
    if size % divisor:
        raise failure(op, f"{what} of {size} does not divide by {divisor}")
    return size // divisor


def _product(size: Size, factor: int) -> Size:
    return size * factor if isinstance(size, int) else size if factor == 1 else UNKNOWN


def _block(op: Op) -> int:
    block = int(op["blocksize"])
    if block < 1:
        raise failure(op, f"the block size is {block}")
    return block


def _depth_to_space(op: Op, s: ShapeContext) -> Result:
    data, block = s.shape(0), _block(op)
    if data is None:
        return [None]
    axes = _axes(op, data)
    depth = _quotient(op, _channels(op, data), block ** len(axes), "a depth")
    return [_with(op, data[0], [_product(data[axis], block) for axis in axes], depth)]


def _space_to_depth(op: Op, s: ShapeContext) -> Result:
    data, block = s.shape(0), _block(op)
    if data is None:
        return [None]
    axes = _axes(op, data)
    sizes = [_quotient(op, data[axis], block, "a spatial size") for axis in axes]
    return [_with(op, data[0], sizes, _product(_channels(op, data), block ** len(axes)))]


def _blocks(op: Op, s: ShapeContext, data: Shape) -> tuple[list[int], list[int], int] | None:
    """Block sizes, the sum of both edges for each, and the first axis that they divide."""
    blocks, edges = s.ints(1), s.ints(2)
    if blocks is None or edges is None:
        return None
    first = 1 if op["data_format"] == "channels_last" or len(data) != 4 else 2
    if first + len(blocks) > len(data) or len(edges) != 2 * len(blocks) or min([*blocks, 1]) < 1 or min([*edges, 0]) < 0:
        raise failure(op, f"blocks {blocks} and edges {edges} do not fit data of shape {data}")
    return blocks, [edges[i] + edges[len(blocks) + i] for i in range(len(blocks))], first


def _space_to_batch(op: Op, s: ShapeContext) -> Result:
    data = s.shape(0)
    found = None if data is None else _blocks(op, s, data)
    if data is None or found is None:
        return [None if data is None else (UNKNOWN,) * len(data)]
    blocks, edges, first = found
    sizes: list[Size] = list(data)
    sizes[0] = _product(data[0], math.prod(blocks))
    for axis, (block, edge) in enumerate(zip(blocks, edges, strict=True), first):
        size = data[axis]
        padded = size + edge if isinstance(size, int) else size if not edge else UNKNOWN
        sizes[axis] = _quotient(op, padded, block, "a padded size")
    return [tuple(sizes)]


def _batch_to_space(op: Op, s: ShapeContext) -> Result:
    data = s.shape(0)
    found = None if data is None else _blocks(op, s, data)
    if data is None or found is None:
        return [None if data is None else (UNKNOWN,) * len(data)]
    blocks, edges, first = found
    sizes: list[Size] = list(data)
    sizes[0] = _quotient(op, data[0], math.prod(blocks), "a batch")
    for axis, (block, edge) in enumerate(zip(blocks, edges, strict=True), first):
        whole = _product(data[axis], block)
        if isinstance(whole, int) and whole < edge:
            raise failure(op, f"a crop of {edge} is larger than the {whole} positions there are")
        sizes[axis] = whole - edge if isinstance(whole, int) else whole if not edge else UNKNOWN
    return [tuple(sizes)]


RULES: dict[str, Rule] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "pool": _pool,
    "global_pool": _global_pool,
    "resize": _resize,
    "depth_to_space": _depth_to_space,
    "space_to_depth": _space_to_depth,
    "space_to_batch": _space_to_batch,
    "batch_to_space": _batch_to_space,
}
