"""Data movement: stored values change place, never value."""

from __future__ import annotations

import math

import numpy as np

from qconvert.arithmetic import saturate
from qconvert.errors import UnsupportedError
from qconvert.evaluate.call import Call, Function, Result, activated, channels_first, channels_last
from qconvert.graph import Array, numpy_dtype

__all__ = ["FUNCTIONS"]


def reshape(call: Call) -> Array:
    """Reshape of ONNX: 0 keeps a size, -1 is what remains."""
    data = call.raw()
    return data.reshape([data.shape[i] if size == 0 else size for i, size in enumerate(call.ints(1))])


def slice_(call: Call) -> Array:
    """Slice of ONNX: (data, starts, ends, axes[, steps]); an end far below zero runs to the first element."""
    data = call.raw()
    starts, ends, axes = (call.ints(index) for index in (1, 2, 3))
    steps = call.ints(4) if call.has(4) else [1] * len(axes)
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(start, end if end > -(2**31) else None, step)
    return data[tuple(index)]


def pad(call: Call) -> Array:
    """Pad of ONNX; a constant pad is real zero where no value is given."""
    data, edges = call.raw(), call.ints(1)
    widths = list(zip(edges[: data.ndim], edges[data.ndim :], strict=True))
    # Negative pads cut.
    data = data[tuple(slice(max(-a, 0), size - max(-b, 0)) for (a, b), size in zip(widths, data.shape, strict=True))]
    widths = [(max(a, 0), max(b, 0)) for a, b in widths]
    if call["mode"] != "constant":
        return np.pad(data, widths, mode=call["mode"])
    value = call.raw(2).reshape(()) if call.has(2) else call.real_zero()
    return np.pad(data, widths, constant_values=value)


def concat(call: Call) -> Array:
    """Concat of ONNX; inputs of other scales are requantized."""
    joined = np.concatenate(call.all_values(), axis=call["axis"])
    return activated(joined, call["activation"])


def pack(call: Call) -> Array:
    """Stacks the inputs along a new axis."""
    return np.stack([call.raw(i) for i in range(len(call.stored))], axis=call["axis"])


def unpack(call: Call) -> list[Array]:
    """Takes an axis apart: one output for each index."""
    return list(np.moveaxis(call.raw(), call["axis"], 0))


def split(call: Call) -> list[Array]:
    """Split of ONNX into parts of given sizes."""
    return np.split(call.raw(), np.cumsum(call.ints(1))[:-1], axis=call["axis"])


def unsqueeze(call: Call) -> Array:
    """Unsqueeze of ONNX; axes count in the output."""
    return np.expand_dims(call.raw(), tuple(call.ints(1)))


def expand(call: Call) -> Array:
    """Expand of ONNX: broadcasting in both directions."""
    data = call.raw()
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(call.ints(1)))).copy()


def depth_to_space(call: Call) -> Array:
    """DepthToSpace of ONNX in mode DCR: channels split as (row, column, depth)."""
    x, block = channels_last(call, call.raw()), call["blocksize"]
    n, h, w, c = x.shape
    x = x.reshape(n, h, w, block, block, c // block**2).transpose(0, 1, 3, 2, 4, 5)
    return channels_first(call, x.reshape(n, h * block, w * block, c // block**2))


def space_to_depth(call: Call) -> Array:
    """SpaceToDepth of ONNX, the reverse of DepthToSpace."""
    x, block = channels_last(call, call.raw()), call["blocksize"]
    n, h, w, c = x.shape
    x = x.reshape(n, h // block, block, w // block, block, c).transpose(0, 1, 3, 2, 4, 5)
    return channels_first(call, x.reshape(n, h // block, w // block, c * block**2))


def _batch_axes(call: Call, rank: int, count: int) -> list[int]:
    """The dimensions that SpaceToBatch and BatchToSpace cut: those after the batch, and after the channels if they come first."""
    first = 2 if call["data_format"] == "channels_first" and rank == 4 else 1
    return [first + i for i in range(count)]


def space_to_batch(call: Call) -> Array:
    """SpaceToBatchND of TensorFlow: (data, block sizes, pads before and after)."""
    x, blocks, pads = call.raw(), call.ints(1), call.ints(2)
    count = len(blocks)
    axes = _batch_axes(call, x.ndim, count)
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
    axes = _batch_axes(call, x.ndim, count)
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


def gather(call: Call) -> Array:
    """Gather of ONNX; the first `batch_dims` dimensions of data and indices go together."""
    data, indices, batch, axis = call.raw(), call.raw(1).astype(np.int64), call["batch_dims"], call["axis"]
    axis = axis % data.ndim
    if not batch:
        return np.take(data, indices, axis)
    rows = [np.take(data[at], indices[at], axis - batch) for at in np.ndindex(data.shape[:batch])]
    return np.stack(rows).reshape(*data.shape[:batch], *rows[0].shape)


def gather_nd(call: Call) -> Array:
    """GatherND of ONNX."""
    data, indices, batch = call.raw(), call.raw(1).astype(np.int64), call["batch_dims"]
    grid = np.indices(indices.shape[:batch], sparse=True) if batch else ()
    own = [axis.reshape(axis.shape + (1,) * (indices.ndim - 1 - batch)) for axis in grid]
    return np.asarray(data[(*own, *np.moveaxis(indices, -1, 0))])


_REDUCTIONS = {"mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _elements(call: Call) -> tuple[Array, ...]:
    """The place in the data that each element of the indices names: its own, but for the operator's axis."""
    indices = call.raw(1).astype(np.int64)
    at: list[Array] = list(np.indices(indices.shape))
    at[call["axis"]] = indices
    return tuple(at)


def scatter_nd(call: Call) -> Result:
    """ScatterND of ONNX."""
    return _scattered(call, tuple(np.moveaxis(call.raw(1).astype(np.int64), -1, 0)))


def _scattered(call: Call, at: tuple[Array, ...]) -> Result:
    """The data with updates at some places; quantized values that meet at one place are added as real values."""
    data, updates, reduction = call.raw(), call.raw(2), call["reduction"]
    if reduction == "add" and call.quantization() is not None:
        zero = int(call.real_zero())
        total = data.astype(np.int64)
        np.add.at(total, at, updates.astype(np.int64) - zero)
        return saturate(total, call.results[0].dtype)
    if reduction == "mul" and call.quantization() is not None:
        raise UnsupportedError("products of quantized values do not stay on their grid", where=str(call.op))
    result = data.copy()
    if reduction == "none":
        result[at] = updates
    elif reduction == "add":
        np.add.at(result, at, updates)
    else:
        _REDUCTIONS[reduction].at(result, at, updates)
    return result


def one_hot(call: Call) -> Array:
    """OneHot of ONNX: (indices, depth, [off, on]); negative indices count from the end."""
    indices, values = call.raw(0).astype(np.int64), call.raw(2)
    (depth,) = call.ints(1)
    indices = np.where(indices < 0, indices + depth, indices)
    axis = call["axis"] % (indices.ndim + 1)
    codes = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    return np.asarray(values[(np.expand_dims(indices, axis) == codes).astype(np.int64)])


def range_(call: Call) -> Array:
    """Range of ONNX: from start, in steps of delta, below limit."""
    start, limit, delta = (call.values(i).reshape(()) for i in range(3))
    count = max(math.ceil((limit - start) / delta), 0)
    return np.asarray(start + np.arange(count) * delta)


def trilu(call: Call) -> Array:
    """Trilu of ONNX: the upper or lower triangle of matrices, from the k-th diagonal on."""
    (k,) = call.ints(1) if call.has(1) else [0]
    return np.triu(call.raw(), k) if call["upper"] else np.tril(call.raw(), k)


FUNCTIONS: dict[str, Function] = {
    "Reshape": reshape,
    "Squeeze": lambda call: np.squeeze(call.raw(), tuple(call.ints(1))),
    "Unsqueeze": unsqueeze,
    "Transpose": lambda call: call.raw().transpose(call["perm"]),
    "Slice": slice_,
    "Pad": pad,
    "Tile": lambda call: np.tile(call.raw(), call.ints(1)),
    "Expand": expand,
    "Concat": concat,
    "Pack": pack,
    "Unpack": unpack,
    "Split": split,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "SpaceToBatch": space_to_batch,
    "BatchToSpace": batch_to_space,
    "Gather": gather,
    "GatherND": gather_nd,
    "ScatterND": scatter_nd,
    "GatherElements": lambda call: np.asarray(call.raw()[_elements(call)]),
    "ScatterElements": lambda call: _scattered(call, _elements(call)),
    "Trilu": trilu,
    "OneHot": one_hot,
    "NonZero": lambda call: np.array(np.nonzero(call.values())),
    "Shape": lambda call: np.array(call.raw().shape, numpy_dtype(call.results[0].dtype)),
    "Range": range_,
}
