"""Resize: (X, sizes) with one size for each spatial dimension; and moves between space, depth and batch. Formulas: ONNX Resize,
SpaceToDepth, DepthToSpace (opset 13); TensorFlow's space_to_batch_nd."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qconvert.arithmetic import saturate
from qconvert.arithmetic.storage import Array
from qconvert.errors import UnsupportedError
from qconvert.graph.schema import Op, Shape
from qconvert.operators.attributes import DATA_FORMAT, choice, has, integer
from qconvert.operators.call import Call, ExactResult, Result, channels_first, channels_last, spatial_axes
from qconvert.operators.kind import Kind
from qconvert.operators.properties import DECIDES, Layout, Suits, any_value, within_data_or_zero
from qconvert.operators.sizes import (
    UNKNOWN,
    Rule,
    ShapeContext,
    Shapes,
    Size,
    axes_of_space,
    block_size,
    channel_count,
    failure,
    product_size,
    quotient,
    with_spatial,
)


def _depth_to_space_shape(op: Op, s: ShapeContext) -> Shapes:
    block, data = block_size(op), s.known_shape(0)
    axes = axes_of_space(op, data)
    depth = quotient(op, channel_count(op, data), block ** len(axes), "a depth")
    return [with_spatial(op, data[0], [product_size(data[axis], block) for axis in axes], depth)]


def _space_to_depth_shape(op: Op, s: ShapeContext) -> Shapes:
    block, data = block_size(op), s.known_shape(0)
    axes = axes_of_space(op, data)
    sizes = [quotient(op, data[axis], block, "a spatial size") for axis in axes]
    return [with_spatial(op, data[0], sizes, product_size(channel_count(op, data), block ** len(axes)))]


def _blocks(op: Op, s: ShapeContext, data: Shape) -> tuple[list[int], list[Size], int] | None:
    """Block sizes, the sum of both edges for each, and the first axis that they divide."""
    blocks, stated = s.ints(1), s.ints(2)
    if stated is not None and len(stated) % 2:
        raise failure(op, f"crops or pads {stated} must be two for each block", rule="counts-differ")
    if blocks is None:
        return None
    edges = s.sizes(2, 2 * len(blocks))
    (first,) = block_axes(str(op["data_format"]), len(data), 1)
    if (
        not blocks
        or first + len(blocks) > len(data)
        or len(edges) != 2 * len(blocks)
        or min([*blocks, 1]) < 1
        or any(isinstance(edge, int) and edge < 0 for edge in edges)
    ):
        raise failure(op, f"blocks {blocks} and crops or pads {edges} do not fit data of shape {data}", rule="shape-mismatch")
    return blocks, [_sum(edges[i], edges[len(blocks) + i]) for i in range(len(blocks))], first


def _sum(a: Size, b: Size) -> Size:
    return a + b if isinstance(a, int) and isinstance(b, int) else UNKNOWN


def _padded(op: Op, size: Size, block: int, edge: Size) -> Size:
    padded: Size = size + edge if isinstance(size, int) and isinstance(edge, int) else size if edge == 0 else UNKNOWN
    return quotient(op, padded, block, "a padded size")


def _cropped(op: Op, size: Size, block: int, edge: Size) -> Size:
    whole = product_size(size, block)
    if not isinstance(whole, int) or not isinstance(edge, int):
        return whole if edge == 0 else UNKNOWN
    if whole < edge:
        raise failure(op, f"a crop of {edge} is larger than the {whole} positions there are", rule="crop-too-large")
    return whole - edge


def _blocked_shape(batch: Callable[[Op, Size, int], Size], cut: Callable[[Op, Size, int, Size], Size]) -> Rule:
    """The shape of data whose blocks go into the batch, or come from it."""

    def shape(op: Op, s: ShapeContext) -> Shapes:
        data = s.known_shape(0)
        found = _blocks(op, s, data)
        if found is None:
            return [(UNKNOWN,) * len(data)]
        blocks, edges, first = found
        sizes: list[Size] = [batch(op, data[0], math.prod(blocks)), *data[1:]]
        for axis, (block, edge) in enumerate(zip(blocks, edges, strict=True), first):
            sizes[axis] = cut(op, data[axis], block, edge)
        return [tuple(sizes)]

    return shape


def depth_to_space(call: Call) -> Array:
    """DepthToSpace of ONNX: channels split as (row, column, depth) in mode DCR, as (depth, row, column) in mode CRD."""
    x, block = channels_last(call, call.raw()), call["blocksize"]
    n, h, w, c = x.shape
    if call["mode"] == "CRD":
        x = x.reshape(n, h, w, c // block**2, block, block).transpose(0, 1, 2, 4, 5, 3)
    x = x.reshape(n, h, w, block, block, c // block**2).transpose(0, 1, 3, 2, 4, 5)
    return channels_first(call, x.reshape(n, h * block, w * block, c // block**2))


def space_to_depth(call: Call) -> Array:
    """SpaceToDepth of ONNX, the reverse of DepthToSpace."""
    x, block = channels_last(call, call.raw()), call["blocksize"]
    n, h, w, c = x.shape
    x = x.reshape(n, h // block, block, w // block, block, c).transpose(0, 1, 3, 2, 4, 5)
    return channels_first(call, x.reshape(n, h // block, w // block, c * block**2))


def block_axes(data_format: str, rank: int, count: int) -> list[int]:
    """The dimensions that SpaceToBatch and BatchToSpace cut: those after the batch, and after the channels if they come first."""
    first = 2 if data_format == "channels_first" and rank == 4 else 1
    return [first + index for index in range(count)]


def space_to_batch(call: Call) -> Array:
    """SpaceToBatchND of TensorFlow: (data, block sizes, pads before and after)."""
    x, blocks, pads = call.raw(), call.ints(1), call.ints(2)
    count = len(blocks)
    axes = block_axes(str(call["data_format"]), x.ndim, count)
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        widths[axis] = (pads[i], pads[count + i])
    x = np.pad(x, widths, constant_values=call.real_zero())
    shape: list[int] = []
    for axis, size in enumerate(x.shape):
        shape += [size // blocks[axes.index(axis)], blocks[axes.index(axis)]] if axis in axes else [size]
    inner = [axis + axes.index(axis) + 1 for axis in axes]
    outer = [i for i in range(len(shape)) if i not in inner]
    moved = x.reshape(shape).transpose(inner + outer)
    sizes = [shape[i] for i in outer]
    return moved.reshape(sizes[0] * math.prod(blocks), *sizes[1:])


def batch_to_space(call: Call) -> Array:
    """BatchToSpaceND of TensorFlow: (data, block sizes, crops before and after)."""
    x, blocks, crops = call.raw(), call.ints(1), call.ints(2)
    count = len(blocks)
    axes = block_axes(str(call["data_format"]), x.ndim, count)
    spread = x.reshape(*blocks, x.shape[0] // math.prod(blocks), *x.shape[1:])
    order: list[int] = []
    for axis in range(x.ndim):
        order += [count + axis, axes.index(axis)] if axis in axes else [count + axis]
    sizes = [size * (blocks[axes.index(a)] if a in axes else 1) for a, size in enumerate(spread.shape[count:])]
    joined = spread.transpose(order).reshape(sizes)
    index = [slice(None)] * x.ndim
    for i, axis in enumerate(axes):
        index[axis] = slice(crops[i], sizes[axis] - crops[count + i])
    return joined[tuple(index)]


def _resize_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.known_shape(0)
    count = len(axes_of_space(op, data))
    sizes = s.sizes(1, count)
    if len(sizes) != count or any(isinstance(size, int) and size < 1 for size in sizes):
        raise failure(op, f"sizes {sizes} are not {count} positive numbers", rule="invalid-sizes")
    return [with_spatial(op, data[0], sizes, channel_count(op, data))]


def resize(call: Call) -> Result:
    """Resize of ONNX to given sizes, linear or nearest, one spatial dimension after the other.

    With an `arithmetic` ties are those of stored integers.
    """
    from fractions import Fraction

    steps, scale = call.factor(0)
    whole = Fraction(1)
    for axis, size in zip(spatial_axes(call, steps.ndim), call.ints(1), strict=True):
        if call["mode"] == "nearest":
            chosen = nearest_indices(steps.shape[axis], size, str(call["coordinate_transformation_mode"]), str(call["nearest_mode"]))
            steps = steps.take(chosen, axis)
        elif call["mode"] == "linear":
            numerators, denominator = positions(call["coordinate_transformation_mode"], steps.shape[axis], size)
            steps = _interpolate(steps, axis, numerators, denominator)
            whole *= denominator
        else:
            raise UnsupportedError(f"the resize mode {call['mode']!r} is not evaluated", where=str(call.op), rule="not-evaluated")
    real, (result,) = np.asarray(steps / float(whole) * scale), call.results
    quantization = result.per_tensor
    if not call["arithmetic"] or quantization is None or quantization != call.quantization():
        return real
    stored = steps / float(whole) + quantization.point
    return ExactResult(real, saturate(np.floor(stored + 0.5) if call["arithmetic"] == "ties_up" else np.rint(stored), result.dtype))


def positions(mode: str, size: int, wanted: int) -> tuple[Array, int]:
    """Where each output position lies in the input: whole numerators over one denominator, so that ties are exact."""
    at = np.arange(wanted, dtype=np.int64)
    if mode == "asymmetric":
        return at * size, wanted
    if mode in ("half_pixel", "half_pixel_symmetric") or (mode == "pytorch_half_pixel" and wanted > 1):
        return (2 * at + 1) * size - wanted, 2 * wanted
    if mode == "tf_half_pixel_for_nn":
        return (2 * at + 1) * size, 2 * wanted
    if mode in ("align_corners", "pytorch_half_pixel"):
        return (at * (size - 1), wanted - 1) if wanted > 1 else (at, 1)
    raise UnsupportedError(f"the coordinate transformation {mode!r} is not evaluated", rule="not-evaluated")


def nearest(mode: str, numerators: Array, denominator: int) -> Array:
    """Positions rounded to whole ones, by ONNX's nearest_mode."""
    rounded = {
        "floor": (numerators, denominator),
        "ceil": (numerators + denominator - 1, denominator),
        "round_prefer_ceil": (2 * numerators + denominator, 2 * denominator),
        "round_prefer_floor": (2 * numerators + denominator - 1, 2 * denominator),
    }
    above, below = rounded[mode]
    return np.asarray(above // below)


def nearest_indices(size: int, wanted: int, coordinates: str, nearest_mode: str) -> Array:
    """Which of `size` elements each of `wanted` ones copies."""
    return np.clip(nearest(nearest_mode, *positions(coordinates, size, wanted)), 0, size - 1)


def _interpolate(values: Array, axis: int, numerators: Array, denominator: int) -> Array:
    """Linear interpolation along an axis, times the denominator; outside the input its edge continues."""
    lower = numerators // denominator
    shape = [-1 if i == axis else 1 for i in range(values.ndim)]
    weight = (numerators - lower * denominator).reshape(shape).astype(np.float64)
    last = values.shape[axis] - 1
    below, above = (values.take(np.clip(index, 0, last), axis) for index in (lower, lower + 1))
    return np.asarray(below * (denominator - weight) + above * weight)


_TRANSFORMATIONS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


KINDS = (
    Kind(
        "DepthToSpace",
        shape=_depth_to_space_shape,
        rule="move",
        evaluate=depth_to_space,
        layout=DECIDES,
        attributes=has(DATA_FORMAT, blocksize=integer(), mode=choice(("DCR", "CRD"), "DCR")),
    ),
    Kind(
        "SpaceToDepth",
        shape=_space_to_depth_shape,
        rule="move",
        evaluate=space_to_depth,
        layout=DECIDES,
        attributes=has(DATA_FORMAT, blocksize=integer()),
    ),
    Kind(
        "SpaceToBatch",
        "data index index",
        shape=_blocked_shape(lambda op, size, count: product_size(size, count), _padded),
        rule="move",
        evaluate=space_to_batch,
        layout=DECIDES,
        bounds=within_data_or_zero,
        attributes=has(DATA_FORMAT),
    ),
    Kind(
        "BatchToSpace",
        "data index index",
        shape=_blocked_shape(lambda op, size, count: quotient(op, size, count, "a batch"), _cropped),
        rule="move",
        evaluate=batch_to_space,
        layout=DECIDES,
        attributes=has(DATA_FORMAT),
    ),
    Kind(
        "Resize",
        "data index",
        bounds=any_value,
        keeps_range=True,
        shape=_resize_shape,
        evaluate=resize,
        layout=Layout(Suits.DECIDES, sized=True),
        attributes=has(
            DATA_FORMAT,
            mode=choice(("nearest", "linear", "cubic")),
            coordinate_transformation_mode=choice(_TRANSFORMATIONS),
            nearest_mode=choice(_NEAREST, "floor"),
            arithmetic=choice(("", "torch", "ties_up"), ""),
        ),
    ),
)
