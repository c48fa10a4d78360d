"""split_pixels: a convolution of blocks of pixels becomes one of pixels again, as merge_pixels found it. Exact.

Each pixel of a block of results has the same weights, at its own place, and the same bias; all other weights are 0.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.operators import kind_of
from qconvert.operators.properties import permutation
from qconvert.passes.merge_pixels import SUFFIX
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Split the pixels of every convolution between two Reshapes, with or without Transposes, that is of this form."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        chain = _find_chain(rewriter, op) if kind_of(op).convolves else None
        window = None if chain is None else _find_window(graph, op, *chain)
        if chain is not None and window is not None:
            _split_pixels(rewriter, op, chain, *window)
    return rewriter.finish_with("{} convolutions of blocks of pixels are convolutions of pixels".format, prune=True)


def _find_chain(rewriter: Rewriter, op: Op) -> tuple[str, str] | None:
    """Return the tensors before and after the Reshapes around a convolution; None if it has none, or others read its result."""
    data, result = op.inputs[0], op.name
    if op["data_format"] == "channels_first":
        before, after = rewriter.producers.find(data, "Transpose"), _find_reader(rewriter, result, "Transpose")
        turns = [() if item is None else tuple(item["perm"]) for item in (before, after)]
        if turns != [permutation(layout, 4) for layout in ("channels_first", "channels_last")] or before is None or after is None:
            return None
        data, result = before.inputs[0], after.outputs[0]
    before, after = rewriter.producers.find(data, "Reshape"), _find_reader(rewriter, result, "Reshape")
    return None if before is None or after is None else (before.inputs[0], after.outputs[0])


def _find_reader(rewriter: Rewriter, name: str, kind: str) -> Op | None:
    """Return the operator of a kind that alone reads a tensor; None where it is another, or there are several."""
    op = rewriter.only_reader(name)
    return op if op is not None and op.kind == kind else None


def _find_window(graph: Graph, op: Op, source: str, result: str) -> tuple[Array, int, tuple[int, ...]] | None:
    """Return the weights O,I,H,W without groups, the stride and the padding of a convolution of pixels; None if it is none.

    Args:
        graph: that the operator belongs to.
        op: the convolution of blocks.
        source: the tensor of the pixels that it reads, N,H,W,C.
        result: likewise of those that it computes.
    """
    weights, data, found = graph[op.inputs[1]], *(_find_sizes(graph[name], "channels_last") for name in (source, result))
    is_plain = op["auto_pad"] == "NOTSET" and op["group"] == 1 and set(op["dilations"]) == {1} and not op["arithmetic"]
    if not is_plain or weights.data is None or weights.data.ndim != 4 or not data or not found or op["strides"][1] != 1:
        return None
    zero = _find_zero_point(weights)
    if zero is None or (op.has(2) and not graph[op.inputs[2]].is_constant):
        return None
    (rows, depth, height, taps), (_, width, channels), (_, positions, results) = weights.data.shape, data, found
    block, pixels = depth // channels, rows // results
    if (block * channels, pixels * results) != (depth, rows) or block < 2 or block % pixels or width % block or positions % pixels:
        return None
    in_blocks = [(data[0], width // block, depth), (found[0], positions // pixels, rows)]
    if [_find_sizes(graph[name], op["data_format"]) for name in (op.inputs[0], op.name)] != in_blocks:  # rows may be joined
        return None
    stride = block // pixels
    spread = weights.data.reshape(pixels, results, block, channels, height, taps).transpose(0, 1, 3, 4, 5, 2)
    rows_of_pixels = spread.reshape(pixels, results, channels, height, taps * block)
    used = [np.flatnonzero((item != zero).any(axis=(0, 1, 2))) - pixel * stride for pixel, item in enumerate(rows_of_pixels)]
    if not all(item.size for item in used):
        return None
    first, last = min(int(item[0]) for item in used), max(int(item[-1]) for item in used)
    before = int(op["pads"][1]) * block - first
    least = (positions - 1) * stride + last - first + 1 - width - before
    # No window reads what is more than the least: it is that of SAME, or pads as along the height.
    alike = least if before == (before + least) // 2 else before + int(op["pads"][2]) - int(op["pads"][0])
    after = min(max(alike, least, 0), least + stride - 1)
    if min(first, before, after) < 0 or (width + before + after - (last - first + 1)) // stride + 1 != positions:
        return None
    window = rows_of_pixels[0][..., first : last + 1]
    for pixel, item in enumerate(rows_of_pixels):
        if not np.array_equal(item[..., first + pixel * stride : last + 1 + pixel * stride], window):
            return None
    if any(not _repeats(graph[name], pixels) for name in op.inputs[1:] if name):
        return None
    return window, stride, (int(op["pads"][0]), before, int(op["pads"][2]), after)


def _find_sizes(tensor: Tensor, data_format: str) -> tuple[int, ...]:
    """Return height, width and channels of a tensor of 4 dimensions; nothing if one is not known, or 0."""
    sizes = [size for size in (tensor.shape or ())[1:] if isinstance(size, int) and size]
    if tensor.rank != 4 or len(sizes) != 3:
        return ()
    return tuple(sizes[axis] for axis in ((0, 1, 2) if data_format == "channels_last" else (1, 2, 0)))


def _find_zero_point(weights: Tensor) -> int | None:
    """Return the zero point of all weights; None if they have several, scales for blocks, or are not quantized."""
    q = weights.quantization
    found = set() if q is None or q.block_size else {int(point) for point in q.zero_point}
    return found.pop() if len(found) == 1 else None


def _repeats(tensor: Tensor, count: int) -> bool:
    """Whether the scales of a constant, and the integers of a vector, are `count` times the same."""
    q = tensor.quantization
    values = [] if q is None or q.axis is None or q.scale.size == 1 else [q.scale, q.zero_point]
    values += [tensor.data] if tensor.rank == 1 and tensor.data is not None else []
    return all(len(item) % count == 0 and (item.reshape(count, -1) == item[: len(item) // count]).all() for item in values)


def _split_pixels(rewriter: Rewriter, op: Op, chain: tuple[str, str], window: Array, stride: int, pads: tuple[int, ...]) -> None:
    """Put the convolution of pixels in the place of the second Reshape."""
    graph = rewriter.graph
    data, result = (graph[name] for name in chain)
    results, channels = window.shape[:2]
    group, each = 1, results // channels
    if channels > 1 and results % channels == 0:
        own, zero = window[np.arange(results), np.arange(results) // each], _find_zero_point(graph[op.inputs[1]])
        if np.count_nonzero(own != zero) == np.count_nonzero(window != zero):
            group, window = channels, own[:, None]
    operands = [_shorten(rewriter, graph[op.inputs[1]], window, results)]
    if op.has(2):
        bias = graph[op.inputs[2]]
        assert bias.data is not None
        operands.append(_shorten(rewriter, bias, bias.data[:results], results))
    conv = op.with_attributes(strides=(op["strides"][0], stride), pads=pads, group=group)
    last = rewriter.producers[result.name]
    if op["data_format"] == "channels_last":
        rewriter.replace(last, replace(conv, inputs=(data.name, *operands), outputs=(result.name,)))
        return
    perm = permutation("channels_first", 4)
    turned = [
        rewriter.add(f"{tensor.name}/channels_first", tensor, shape=tuple((tensor.shape or ())[axis] for axis in perm))
        for tensor in (data, result)
    ]
    rewriter.replace(
        last,
        op.derive("Transpose", (data.name,), (turned[0],), perm=perm),
        replace(conv, inputs=(turned[0], *operands), outputs=(turned[1],)),
        op.derive("Transpose", (turned[1],), (result.name,), perm=permutation("channels_last", 4)),
    )


def _shorten(rewriter: Rewriter, tensor: Tensor, data: Array, count: int) -> str:
    """Add a constant with the first `count` scales of another, under the name that merge_pixels found."""
    q = tensor.quantization
    if q is not None and q.axis is not None and q.scale.size > 1:
        q = Quantization(q.scale[:count], q.zero_point[:count], q.axis)
    return rewriter.add(tensor.name.removesuffix(SUFFIX), tensor, shape=data.shape, data=data, quantization=q)
