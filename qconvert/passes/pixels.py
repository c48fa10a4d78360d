"""Blocks of neighbouring pixels as channels of convolutions.

merge_pixels: neighbouring pixels of a row become channels of a convolution that has few channels itself.

    x (N,H,W,C) -> Conv -> y (N,H,W,O)        is
    x -> Reshape (N,H,W/b,b*C) -> Conv -> (N,H,W/b,b*O) -> Reshape -> y

with a Pad before and a Slice after these where whole blocks do not fill the rows.

Exact: the sums have the same products, and further ones with weights of 0. onnxruntime's fast kernels (convsym.cpp of MLAS) take signed
weights with zero point 0, a multiple of 4 input channels and 16 output channels or more. For other convolutions it copies the data of each
tap and multiplies matrices, and depthwise ones of less than 16 channels are computed by a scalar loop. Measured with VNNI: the first layer
of a network takes 0.3 to 0.6 of the time (0.45 to 0.9 with a zero point), a depthwise layer of 4 to 12 channels 0.25 to 0.8. split_pixels
reads it back.

split_pixels: a convolution of blocks of pixels becomes one of pixels again, as merge_pixels found it. Exact.

Each pixel of a block of results has the same weights, at its own place, and the same bias; all other weights are 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from qconvert.errors import format_count, format_verb
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.operators import kind_of
from qconvert.operators.properties import permutation
from qconvert.operators.sizes import stated_pads
from qconvert.passes.stored_types import as_signed
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.requantize import is_quantized

#: Of the names of tensors and constants that have several pixels in place of one.
_SUFFIX = "/pixels"
#: Pixels of the data in a block; fewer have fewer weights of 0.
_BLOCKS = (2, 4, 8, 16)
#: Output channels: less than the kernels take, and from which on more pixels gain nothing.
_LEAST_RESULTS, _ENOUGH_RESULTS = 16, 32
#: Input channels up to which the weights of 0 cost less than the other kernels.
_MOST_CHANNELS, _MOST_DEPTHWISE = 32, 12
#: Likewise where the weights have a zero point, which no fast kernel takes: blocks are copied faster than the taps of so few channels. Of
#: data with so few channels rows that whole blocks do not fill are padded, where the result has many elements.
_MOST_SHIFTED, _LEAST_PADDED = 3, 2**12


def merge_pixels(graph: Graph, target: Target | None, *, weights_by_cpu: bool = False) -> PassResult:
    """Merge pixels for each convolution, channels last, whose channels the kernels do not take and whose rows whole blocks fill or can be
    padded to.

    See convolutions_of_bytes() for targets that gain nothing.
    """
    rewriter = Rewriter(graph)
    for op in convolutions_of_bytes(rewriter, target, weights_by_cpu):
        if _has_few_channels(graph, op) and (block := _find_block(graph, op)):
            rewriter.replace(op, *_emit_merged(rewriter, op, block))
    return rewriter.finish_with(
        lambda count: (
            f"{format_count(count, 'convolution')} of few channels {format_verb(count, 'have')} neighbouring pixels as channels, "
            "for which kernels are faster"
        )
    )


def convolutions_of_bytes(rewriter: Rewriter, target: Target | None, weights_by_cpu: bool) -> Iterator[Op]:
    """Yield the convolutions of bytes over two dimensions, channels last, of known sizes and with constant weights and biases.

    None for a target on which signed weights may saturate (guard_saturation): it gains nothing by other ones, unless onnxruntime chooses
    the weights by the CPU.
    """
    if target is not None and target.kernels.max_pair_sum and not weights_by_cpu:
        return
    graph = rewriter.graph
    for op in rewriter:
        if not kind_of(op).convolves or op["data_format"] != "channels_last" or op["arithmetic"] or not is_quantized(graph, op):
            continue
        data, weights, result = sides = [graph[name] for name in (*op.inputs[:2], op.name)]
        sizes = [size for tensor in (data, result) for size in (tensor.shape or ())[1:]]
        is_known = len(sizes) == 6 and all(isinstance(size, int) and size for size in sizes) and weights.rank == 4
        is_constant = weights.data is not None and (not op.has(2) or graph[op.inputs[2]].is_constant)
        if is_known and is_constant and result.is_quantized and not {tensor.dtype for tensor in sides} - {"int8", "uint8"}:
            yield op


def _has_few_channels(graph: Graph, op: Op) -> bool:
    """Whether a convolution has fewer channels than the kernels take."""
    data, signed = graph[op.inputs[0]], as_signed(graph[op.inputs[1]])
    q, point = signed.quantization, _find_zero_point(signed)
    if set(op["dilations"]) != {1} or signed.data is None or q is None or point is None or q.block_size or q.axis not in (None, 0):
        return False
    if not (signed.data[..., [0, -1]] != point).any(axis=(0, 1, 2)).all():
        return False  # split_pixels finds the width of the window by weights that are not 0
    channels, group = int((data.shape or ())[3]), int(op["group"])
    if group == 1:
        return channels <= (_MOST_SHIFTED if point else _MOST_CHANNELS) and channels % 4 != 0
    return not point and group == channels <= _MOST_DEPTHWISE


def _find_block(graph: Graph, op: Op) -> int:
    """Return the number of pixels in a block of the data; 0 if no number fits."""
    sizes = ([int(size) for size in (graph[name].shape or ())[1:]] for name in (op.inputs[0], op.name))
    (height, width, channels), (lines, positions, results) = sizes
    stride, fitting = int(op["strides"][1]), []
    for block in _BLOCKS:
        if block % stride or block * channels % 4:
            continue
        if min(height * width // block, lines * positions * stride // block) <= 1:
            continue  # the Transpose of one pixel is a Reshape, which is joined to the one next to it
        if block // stride * results >= _LEAST_RESULTS and min(_measure_window(graph, op, block)[1:]) >= 0:
            fitting.append(block)
    whole = [block for block in fitting if not width % block and not positions % (block // stride)]
    if not whole and channels <= _MOST_SHIFTED and lines * positions * results >= _LEAST_PADDED:
        whole = fitting
    return next((block for block in whole if block // stride * results >= _ENOUGH_RESULTS), max(whole, default=0))


def _measure_window(graph: Graph, op: Op, block: int) -> tuple[int, int, int]:
    """Return the width of the window, the padding before and the padding after each row, in blocks."""
    data, result, taps = (graph[name].shape or () for name in (op.inputs[0], op.name, op.inputs[1]))
    sizes, kernel = [[int(size) for size in shape] for shape in (data[1:3], taps[2:])]
    before, stride, pixels = stated_pads(op, sizes, kernel, op["dilations"])[1], int(op["strides"][1]), block // int(op["strides"][1])
    first, last = -before // block, ((pixels - 1) * stride - before + kernel[1] - 1) // block
    return last - first + 1, -first, -(-int(result[2]) // pixels) + last - -(-sizes[1] // block)


def _emit_merged(rewriter: Rewriter, op: Op, block: int) -> tuple[Op, ...]:
    """Return the convolution of blocks between two Reshapes, and a Slice after them where whole blocks have pixels beyond the result."""
    graph = rewriter.graph
    data, weights, result = (graph[name] for name in (*op.inputs[:2], op.name))
    assert data.shape is not None and result.shape is not None and weights.data is not None
    taps, before, after = _measure_window(graph, op, block)
    stride, (_, _, height, width) = int(op["strides"][1]), weights.data.shape
    pads = stated_pads(op, [int(size) for size in data.shape[1:3]], (height, width), op["dilations"])
    pixels, channels, results = block // stride, int(data.shape[3]), int(result.shape[3])
    zero = 0 if weights.quantization is None else int(weights.quantization.zero_point.flat[0])
    dense = np.full((results, channels, height, width), zero, weights.data.dtype)
    depth = channels // int(op["group"])
    for row in range(results):
        first = row * int(op["group"]) // results * depth
        dense[row, first : first + depth] = weights.data[row]
    merged = np.full((pixels, results, block, channels, height, taps), zero, weights.data.dtype)
    for pixel, tap in product(range(pixels), range(width)):
        place = pixel * stride - pads[1] + tap + before * block
        merged[pixel, :, place % block, :, :, place // block] = dense[..., tap]
    shape = (pixels * results, block * channels, height, taps)
    operands = [rewriter.add(f"{weights.name}{_SUFFIX}", _repeat(weights, pixels), shape=shape, data=merged.reshape(shape))]
    if op.has(2):
        bias = graph[op.inputs[2]]
        assert bias.data is not None
        rows = np.tile(np.broadcast_to(bias.data.reshape(-1), (results,)), pixels)
        operands.append(rewriter.add(f"{bias.name}{_SUFFIX}", _repeat(bias, pixels), shape=rows.shape, data=rows))

    padding, beyond = -int(data.shape[2]) % block, -int(result.shape[2]) % pixels
    if padding:
        data = rewriter[rewriter.pad(data, (0, 0, 0, 0, 0, 0, padding, 0), f"{data.name}{_SUFFIX}", op.source)]
    whole = result if not beyond else rewriter[_widen(rewriter, result, beyond)]
    blocks, found = (_spread(rewriter, tensor, count) for tensor, count in ((data, block), (whole, pixels)))
    conv = replace(op, inputs=(blocks, *operands), outputs=(found,)).with_attributes(
        strides=(int(op["strides"][0]), 1), pads=(pads[0], before, pads[2], after), auto_pad="NOTSET", group=1
    )
    ops = (_reshape(rewriter, data.name, blocks, op), conv, _reshape(rewriter, found, whole.name, op))
    if not beyond:
        return ops
    bounds = [
        rewriter.constant(f"{whole.name}/{word}", [value]) for word, value in (("starts", 0), ("ends", int(result.shape[2])), ("axes", 2))
    ]
    return (*ops, op.derive("Slice", (whole.name, *bounds), (result.name,)))


def _widen(rewriter: Rewriter, tensor: Tensor, more: int) -> str:
    """Add a tensor N,H,W,C with more pixels in each row."""
    batch, height, width, channels = tensor.shape or ()
    return rewriter.add(f"{tensor.name}/whole{_SUFFIX}", tensor, shape=(batch, height, int(width) + more, channels))


def _spread(rewriter: Rewriter, tensor: Tensor, count: int) -> str:
    """Add a tensor with `count` neighbouring pixels as channels of one."""
    batch, height, width, channels = tensor.shape or ()
    return rewriter.add(f"{tensor.name}{_SUFFIX}", tensor, shape=(batch, height, int(width) // count, int(channels) * count))


def _reshape(rewriter: Rewriter, data: str, result: str, op: Op) -> Op:
    sizes = rewriter.constant(f"{result}/sizes", [-1, *(int(size) for size in (rewriter[result].shape or ())[1:])])
    return op.derive("Reshape", (data, sizes), (result,))


def _repeat(tensor: Tensor, count: int) -> Tensor:
    """Return a constant with its scales along the first axis `count` times."""
    q = tensor.quantization
    if q is None or q.axis is None or q.scale.size == 1:
        return tensor
    return replace(tensor, quantization=Quantization(np.tile(q.scale, count), np.tile(q.zero_point, count), q.axis))


def split_pixels(graph: Graph, target: Target | None) -> PassResult:
    """Split the pixels of every convolution between two Reshapes, with or without Transposes and padded rows, that is of this form."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        chain = _find_chain(rewriter, op) if kind_of(op).convolves else None
        window = None if chain is None else _find_window(graph, op, *chain)
        if chain is not None and window is not None:
            _emit_split(rewriter, op, chain, *window)
    return rewriter.finish_with(
        lambda count: f"{format_count(count, 'convolution')} of blocks of pixels {format_verb(count, 'become')} convolutions of pixels",
        prune=True,
    )


def _find_chain(rewriter: Rewriter, op: Op) -> tuple[str, str] | None:
    """Return the tensors before and after the Reshapes around a convolution, and around a Pad and a Slice of rows; None if it has none, or
    others read its result."""
    data, result = op.inputs[0], op.name
    if op["data_format"] == "channels_first":
        before, after = rewriter.producers.find(data, "Transpose"), rewriter.only_reader(result, "Transpose")
        turns = [() if item is None else tuple(item["perm"]) for item in (before, after)]
        if turns != [permutation(layout, 4) for layout in ("channels_first", "channels_last")] or before is None or after is None:
            return None
        data, result = before.inputs[0], after.name
    before, after = rewriter.producers.find(data, "Reshape"), rewriter.only_reader(result, "Reshape")
    if before is None or after is None:
        return None
    return _find_unpadded(rewriter, before.inputs[0]), _find_cut(rewriter, after.name)


def _find_unpadded(rewriter: Rewriter, name: str) -> str:
    """Return the tensor before merge_pixels' Pad with zero at the ends of the rows, or the tensor itself."""
    pad = rewriter.producers.find(name, "Pad") if _SUFFIX in name else None
    widths = None if pad is None or pad["mode"] != "constant" or pad.has(2) else rewriter.graph.constant(pad.inputs[1])
    is_row = widths is not None and widths.size == 8 and not np.delete(widths.reshape(-1), 6).any() and widths.reshape(-1)[6] > 0
    return pad.inputs[0] if pad is not None and is_row else name


def _find_cut(rewriter: Rewriter, name: str) -> str:
    """Return the tensor after merge_pixels' Slice that ends the rows earlier, or the tensor itself."""
    cut = rewriter.only_reader(name, "Slice") if _SUFFIX in name else None
    bounds = [] if cut is None or cut.has(4) else [rewriter.graph.constant(bound) for bound in cut.inputs[1:]]
    is_row = [values.reshape(-1).tolist() for values in bounds[::2] if values is not None] == [[0], [2]]
    return cut.name if cut is not None and is_row else name


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
    if (block * channels, pixels * results) != (depth, rows) or block < 2 or block % pixels:
        return None
    in_blocks = [(data[0], -(-width // block), depth), (found[0], -(-positions // pixels), rows)]
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


def _emit_split(rewriter: Rewriter, op: Op, chain: tuple[str, str], window: Array, stride: int, pads: tuple[int, ...]) -> None:
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
    q = None if tensor.quantization is None else tensor.quantization.take(slice(count))
    return rewriter.add(tensor.name.removesuffix(_SUFFIX), tensor, shape=data.shape, data=data, quantization=q)
