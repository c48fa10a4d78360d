"""Shapes of operator outputs, one rule a `shape` name in ops.OPS. A size that is known only at run time is a string.

A rule gets the operator and a Shapes view of the graph and gives a shape for each output; None means that not even the rank is
known, and the string "?" a size that nothing is known of (infer() gives it a name).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qconvert.errors import InvalidGraphError
from qconvert.graph import Graph, Op, Shape, Tensor
from qconvert.ops import OPS

__all__ = ["RULES", "Shapes", "compatible", "infer", "output_shapes"]

Size = int | str
Result = list[Shape | None]


class Shapes:
    """What a rule may ask of the graph."""

    def __init__(self, tensors: dict[str, Tensor], op: Op) -> None:
        self._tensors = tensors
        self._op = op

    def of(self, index: int) -> Shape | None:
        """The shape of input `index`."""
        return self._tensors[self._op.inputs[index]].shape

    def ints(self, index: int) -> list[int] | None:
        """The integers of constant input `index`, None if it is absent or computed."""
        if index >= len(self._op.inputs) or not self._op.inputs[index]:
            return None
        data = self._tensors[self._op.inputs[index]].data
        return None if data is None else [int(v) for v in np.asarray(data).reshape(-1)]

    def length(self, index: int) -> Size:
        """The number of elements of one-dimensional input `index`."""
        shape = self.of(index)
        return "?" if shape is None or len(shape) != 1 else shape[0]


def _fail(op: Op, reason: str) -> InvalidGraphError:
    return InvalidGraphError(reason, where=f"{op.source} {op}".strip())


def _spatial(op: Op, shape: Shape) -> range:
    return range(1, len(shape) - 1) if op["data_format"] == "channels_last" else range(2, len(shape))


def _with(op: Op, shape: Shape, spatial: Sequence[Size], channels: Size) -> Shape:
    """`shape` with other spatial sizes and channels."""
    return (shape[0], *spatial, channels) if op["data_format"] == "channels_last" else (shape[0], channels, *spatial)


def _channels(op: Op, shape: Shape) -> Size:
    return shape[-1] if op["data_format"] == "channels_last" else shape[1]


def _window_size(op: Op, size: Size, taps: int, i: int, dilation: int) -> Size:
    if isinstance(size, str):
        return "?"
    stride, rank = int(op["strides"][i]), len(op["strides"])
    if op["auto_pad"] == "SAME_UPPER":
        return -(-size // stride)
    reach = (taps - 1) * dilation + 1
    free = size + int(op["pads"][i]) + int(op["pads"][rank + i]) - reach
    if free < 0:
        raise _fail(op, f"a window of {reach} does not fit a size of {size} with its padding")
    return free // stride + 1


def _conv(op: Op, s: Shapes) -> Result:
    data, weights = s.of(0), s.of(1)
    if data is None or weights is None:
        return [None]
    if len(weights) != len(data):
        raise _fail(op, f"weights of rank {len(weights)} for data of rank {len(data)}")
    channels, per_group = _channels(op, data), weights[1]
    if isinstance(channels, int) and isinstance(per_group, int) and channels != per_group * int(op["group"]):
        raise _fail(op, f"{channels} channels do not fit {op['group']} groups of {per_group}")
    sizes = [_window_size(op, data[axis], int(weights[2 + i]), i, int(op["dilations"][i])) for i, axis in enumerate(_spatial(op, data))]
    return [_with(op, data, sizes, weights[0])]


def _conv_transpose(op: Op, s: Shapes) -> Result:
    data, weights = s.of(0), s.of(1)
    if data is None or weights is None:
        return [None]
    sizes: list[Size] = []
    rank = len(op["strides"])
    for i, axis in enumerate(_spatial(op, data)):
        size = data[axis]
        reach = (int(weights[2 + i]) - 1) * int(op["dilations"][i]) + 1
        padding = int(op["pads"][i]) + int(op["pads"][rank + i])
        full = "?" if isinstance(size, str) else (size - 1) * int(op["strides"][i]) + reach - padding + int(op["output_padding"][i])
        sizes.append(full)
    return [_with(op, data, sizes, weights[0])]


def _gemm(op: Op, s: Shapes) -> Result:
    data, weights = s.of(0), s.of(1)
    if data is None or weights is None:
        return [None]
    if len(data) != 2 or len(weights) != 2 or (isinstance(data[1], int) and isinstance(weights[1], int) and data[1] != weights[1]):
        raise _fail(op, f"operands of shape {data} and {weights}")
    return [(data[0], weights[0])]


def _matmul(op: Op, s: Shapes) -> Result:
    a, b = s.of(0), s.of(1)
    if a is None or b is None:
        return [None]
    if len(a) < 2 or len(b) < 2:
        raise _fail(op, f"operands of shape {a} and {b}")
    left = (a[-1], a[-2]) if op["trans_a"] else (a[-2], a[-1])
    right = (b[-1], b[-2]) if op["trans_b"] else (b[-2], b[-1])
    if isinstance(left[1], int) and isinstance(right[0], int) and left[1] != right[0]:
        raise _fail(op, f"operands of shape {a} and {b}")
    batch = _broadcast(op, [a[:-2], b[:-2]])
    return [None if batch is None else (*batch, left[0], right[1])]


def _pool(op: Op, s: Shapes) -> Result:
    data = s.of(0)
    if data is None:
        return [None]
    sizes = [_window_size(op, data[axis], int(op["kernel_shape"][i]), i, 1) for i, axis in enumerate(_spatial(op, data))]
    return [_with(op, data, sizes, _channels(op, data))]


def _resize(op: Op, s: Shapes) -> Result:
    data, sizes = s.of(0), s.ints(1)
    if data is None:
        return [None]
    return [_with(op, data, ["?"] * len(_spatial(op, data)) if sizes is None else sizes, _channels(op, data))]


def _scaled(op: Op, s: Shapes, up: bool) -> Result:
    data, block = s.of(0), int(op["blocksize"])
    if data is None:
        return [None]
    channels = _channels(op, data)
    if up:
        sizes = [size * block if isinstance(size, int) else "?" for size in (data[a] for a in _spatial(op, data))]
        depth = channels // block**2 if isinstance(channels, int) else "?"
    else:
        sizes = [size // block if isinstance(size, int) else "?" for size in (data[a] for a in _spatial(op, data))]
        depth = channels * block**2 if isinstance(channels, int) else "?"
    return [_with(op, data, sizes, depth)]


def _batches(op: Op, s: Shapes, into: bool) -> Result:
    data, blocks, edges = s.of(0), s.ints(1), s.ints(2)
    if data is None or blocks is None or edges is None:
        return [None if data is None else ("?",) * len(data)]
    first = 1 if op["data_format"] == "channels_last" or len(data) != 4 else 2
    sizes: list[Size] = list(data)
    factor = math.prod(blocks)
    sizes[0] = (data[0] * factor if into else data[0] // factor) if isinstance(data[0], int) else "?"
    for i, block in enumerate(blocks):
        size, edge = data[first + i], edges[i] + edges[len(blocks) + i]
        sizes[first + i] = "?" if isinstance(size, str) else ((size + edge) // block if into else size * block - edge)
    return [tuple(sizes)]


def _broadcast(op: Op, shapes: Sequence[Shape | None]) -> Shape | None:
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    rank = max(map(len, known), default=0)
    result: list[Size] = []
    for axis in range(rank):
        sizes = {shape[axis - rank + len(shape)] for shape in known if axis - rank + len(shape) >= 0} - {1}
        numbers = {size for size in sizes if isinstance(size, int)}
        if len(numbers) > 1:
            raise _fail(op, f"shapes {', '.join(map(str, known))} do not broadcast")
        result.append(numbers.pop() if numbers else sizes.pop() if len(sizes) == 1 else "?" if sizes else 1)
    return tuple(result)


def _broadcasting(op: Op, s: Shapes) -> Result:
    return [_broadcast(op, [s.of(i) for i in range(len(op.inputs))])]


def _same(op: Op, s: Shapes) -> Result:
    return [s.of(0)]


def _axes(op: Op, values: list[int] | None, rank: int) -> list[int] | None:
    if values is None:
        return None
    if any(not -rank <= axis < rank for axis in values):
        raise _fail(op, f"axes {values} are outside rank {rank}")
    return [axis % rank for axis in values]


def _reduce(op: Op, s: Shapes) -> Result:
    data = s.of(0)
    axes = None if data is None else _axes(op, s.ints(1), len(data))
    if data is None or axes is None:
        return [None]
    if op["keepdims"]:
        return [tuple(1 if axis in axes else size for axis, size in enumerate(data))]
    return [tuple(size for axis, size in enumerate(data) if axis not in axes)]


def _arg(op: Op, s: Shapes) -> Result:
    data = s.of(0)
    axes = None if data is None else _axes(op, [int(op["axis"])], len(data))
    if data is None or axes is None:
        return [None]
    return [tuple(1 if axis in axes else size for axis, size in enumerate(data) if op["keepdims"] or axis not in axes)]


def _concat(op: Op, s: Shapes) -> Result:
    shapes = [s.of(i) for i in range(len(op.inputs))]
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes) or len({len(shape) for shape in known}) != 1:
        if len({len(shape) for shape in known}) > 1:
            raise _fail(op, f"shapes {', '.join(map(str, known))} of different rank")
        return [None]
    (axis,) = _axes(op, [int(op["axis"])], len(known[0])) or [0]
    along = [shape[axis] for shape in known]
    total: Size = sum(size for size in along if isinstance(size, int)) if all(isinstance(size, int) for size in along) else "?"
    others = _broadcast(op, [(*shape[:axis], 1, *shape[axis + 1 :]) for shape in known])
    return [None if others is None else (*others[:axis], total, *others[axis + 1 :])]


def _pack(op: Op, s: Shapes) -> Result:
    shape = s.of(0)
    return [None if shape is None else (*shape[: op["axis"]], len(op.inputs), *shape[op["axis"] :])]


def _unpack(op: Op, s: Shapes) -> Result:
    shape = s.of(0)
    if shape is None:
        return [None] * len(op.outputs)
    if isinstance(shape[op["axis"]], int) and shape[op["axis"]] != len(op.outputs):
        raise _fail(op, f"{len(op.outputs)} outputs from an axis of {shape[op['axis']]}")
    return [(*shape[: op["axis"]], *shape[op["axis"] + 1 :])] * len(op.outputs)


def _split(op: Op, s: Shapes) -> Result:
    shape, sizes, axis = s.of(0), s.ints(1), int(op["axis"])
    if shape is None:
        return [None] * len(op.outputs)
    if sizes is not None and len(sizes) != len(op.outputs):
        raise _fail(op, f"{len(sizes)} sizes for {len(op.outputs)} outputs")
    if sizes is not None and isinstance(shape[axis], int) and sum(sizes) != shape[axis]:
        raise _fail(op, f"sizes {sizes} of an axis of {shape[axis]}")
    parts: Sequence[Size] = ["?"] * len(op.outputs) if sizes is None else sizes
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def _reshape(op: Op, s: Shapes) -> Result:
    data, sizes = s.of(0), s.ints(1)
    if sizes is None:
        length = s.length(1)
        return [("?",) * length if isinstance(length, int) else None]
    result: list[Size] = list(sizes)
    for axis, size in enumerate(sizes):
        if size == 0 and data is not None and axis < len(data):
            result[axis] = data[axis]
    known = math.prod(size for size in result if isinstance(size, int) and size != -1)
    static = data is not None and all(isinstance(size, int) for size in data)
    count = math.prod(int(size) for size in data) if static and data is not None else 0
    symbols = [size for size in result if isinstance(size, str)]
    if -1 in result:
        wild = result.index(-1)
        left = [size for size in data or () if isinstance(size, str)]
        if static and not symbols:
            if known and count % known:
                raise _fail(op, f"{count} elements do not become {sizes}")
            result[wild] = count // known if known else 0
        elif data is not None and len(left) == 1 and not symbols and math.prod(z for z in data if isinstance(z, int)) == known:
            result[wild] = left[0]
        else:
            result[wild] = "?"
    elif static and not symbols and known != count:
        raise _fail(op, f"{count} elements do not become {sizes}")
    return [tuple(result)]


def _squeeze(op: Op, s: Shapes) -> Result:
    data = s.of(0)
    axes = None if data is None else _axes(op, s.ints(1), len(data))
    if data is None or axes is None:
        return [None]
    if any(isinstance(data[axis], int) and data[axis] != 1 for axis in axes):
        raise _fail(op, f"axes {axes} of shape {data} are not all of size 1")
    return [tuple(size for axis, size in enumerate(data) if axis not in axes)]


def _unsqueeze(op: Op, s: Shapes) -> Result:
    data, new = s.of(0), s.ints(1)
    if data is None or new is None:
        return [None]
    axes = _axes(op, new, len(data) + len(new)) or []
    rest = iter(data)
    return [tuple(1 if axis in axes else next(rest) for axis in range(len(data) + len(new)))]


def _transpose(op: Op, s: Shapes) -> Result:
    data = s.of(0)
    if data is not None and sorted(op["perm"]) != list(range(len(data))):
        raise _fail(op, f"{op['perm']} is no permutation of rank {len(data)}")
    return [None if data is None else tuple(data[axis] for axis in op["perm"])]


def _slice(op: Op, s: Shapes) -> Result:
    data, columns = s.of(0), [s.ints(i) for i in (1, 2, 3)]
    if data is None:
        return [None]
    result: list[Size] = list(data)
    starts, ends, axes = columns
    steps = s.ints(4) if len(op.inputs) > 4 else [1] * len(axes or [])
    for i, axis in enumerate(_axes(op, axes, len(data)) or range(len(data) if axes is None else 0)):
        size = data[axis]
        if starts is None or ends is None or axes is None or steps is None or isinstance(size, str):
            full = starts is not None and ends is not None and steps is not None and starts[i] == 0 and ends[i] >= 2**31 and steps[i] == 1
            result[axis] = size if full else "?"
        else:
            result[axis] = len(range(*slice(starts[i], ends[i] if ends[i] > -(2**31) else None, steps[i]).indices(size)))
    return [tuple(result)]


def _pad(op: Op, s: Shapes) -> Result:
    data, pads = s.of(0), s.ints(1)
    if data is None or pads is None:
        return [None if data is None else ("?",) * len(data)]
    rank = len(data)
    if len(pads) != 2 * rank:
        raise _fail(op, f"{len(pads)} pads for rank {rank}")
    extra = [pads[axis] + pads[rank + axis] for axis in range(rank)]
    return [tuple(size + extra[a] if isinstance(size, int) else size if not extra[a] else "?" for a, size in enumerate(data))]


def _tile(op: Op, s: Shapes) -> Result:
    data, repeats = s.of(0), s.ints(1)
    if data is None or repeats is None:
        return [None if data is None else ("?",) * len(data)]
    return [tuple(size * n if isinstance(size, int) else size if n == 1 else "?" for size, n in zip(data, repeats, strict=True))]


def _expand(op: Op, s: Shapes) -> Result:
    sizes, length = s.ints(1), s.length(1)
    if sizes is None:
        return [("?",) * length if isinstance(length, int) else None]
    return [_broadcast(op, [s.of(0), tuple(sizes)])]


def _gather(op: Op, s: Shapes) -> Result:
    data, indices, axis, batch = s.of(0), s.of(1), int(op["axis"]), int(op["batch_dims"])
    if data is None or indices is None:
        return [None]
    return [(*data[:axis], *indices[batch:], *data[axis + 1 :])]


def _gather_nd(op: Op, s: Shapes) -> Result:
    data, indices = s.of(0), s.of(1)
    if data is None or indices is None or not indices or not isinstance(indices[-1], int):
        return [None]
    return [(*indices[:-1], *data[int(op["batch_dims"]) + indices[-1] :])]


def _topk(op: Op, s: Shapes) -> Result:
    data, k = s.of(0), s.ints(1)
    if data is None:
        return [None, None]
    axis = int(op["axis"]) % len(data)
    shape = (*data[:axis], "?" if k is None else k[0], *data[axis + 1 :])
    return [shape, shape]


def _one_hot(op: Op, s: Shapes) -> Result:
    indices, depth = s.of(0), s.ints(1)
    if indices is None:
        return [None]
    axis = int(op["axis"]) % (len(indices) + 1)
    return [(*indices[:axis], "?" if depth is None else depth[0], *indices[axis:])]


def _range(op: Op, s: Shapes) -> Result:
    return [("?",)]


def _detection(op: Op, s: Shapes) -> Result:
    rows = int(op["max_detections"])
    rows *= 1 if op["use_regular_nms"] else min(int(op["max_classes_per_detection"]), int(op["num_classes"]))
    return [(1, rows, 4), (1, rows), (1, rows), (1,)]


RULES: dict[str, Callable[[Op, Shapes], Result]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "gemm": _gemm,
    "matmul": _matmul,
    "pool": _pool,
    "resize": _resize,
    "depth_to_space": lambda op, s: _scaled(op, s, up=True),
    "space_to_depth": lambda op, s: _scaled(op, s, up=False),
    "space_to_batch": lambda op, s: _batches(op, s, into=True),
    "batch_to_space": lambda op, s: _batches(op, s, into=False),
    "broadcast": _broadcasting,
    "broadcast_bool": _broadcasting,
    "where": _broadcasting,
    "same": _same,
    "scatter_nd": _same,
    "reduce": _reduce,
    "arg": _arg,
    "concat": _concat,
    "pack": _pack,
    "unpack": _unpack,
    "split": _split,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "tile": _tile,
    "expand": _expand,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "topk": _topk,
    "one_hot": _one_hot,
    "non_zero": lambda op, s: [None if (shape := s.of(0)) is None else (len(shape), "?")],
    "shape": lambda op, s: [None if (shape := s.of(0)) is None else (len(shape),)],
    "range": _range,
    "detection": _detection,
}


def output_shapes(tensors: dict[str, Tensor], op: Op) -> Result:
    """The shapes that the rule of `op` gives; raises InvalidGraphError, naming the operator, if its inputs contradict it."""
    try:
        return RULES[OPS[op.kind].shape](op, Shapes(tensors, op))
    except (IndexError, ValueError, TypeError) as error:
        raise _fail(op, f"its inputs or attributes do not fit: {error}") from error


def compatible(a: Shape | None, b: Shape | None) -> bool:
    """Whether two shapes can be of one tensor: equal numbers wherever both have numbers."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(x == y or isinstance(x, str) or isinstance(y, str) for x, y in zip(a, b, strict=True))


def infer(graph: Graph) -> Graph:
    """The graph with the shape of every operator output worked out anew; more exact shapes that are already there are kept.

    Raises InvalidGraphError if a shape in the graph contradicts what its operator gives.
    """
    tensors = dict(graph.tensors)
    for op in graph.ops:
        for name, shape in zip(op.outputs, output_shapes(tensors, op), strict=True):
            old = tensors[name].shape
            if not compatible(old, shape):
                raise _fail(op, f"gives {name!r} the shape {shape}, but the graph says {old}")
            merged = old if shape is None else tuple(_merge(name, axis, size, None if old is None else old[axis]) for axis, size in enumerate(shape))
            tensors[name] = replace(tensors[name], shape=merged)
    return replace(graph, tensors=tensors)


def _merge(name: str, axis: int, inferred: Size, old: Size | None) -> Size:
    if isinstance(inferred, int):
        return inferred
    if isinstance(old, int) or (inferred == "?" and old is not None):
        return old if old is not None else inferred
    return f"{name}_{axis}" if inferred == "?" else inferred
