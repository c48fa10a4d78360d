"""merge_pixels: neighbouring pixels of a row become channels of a convolution that has few channels itself.

    x (N,H,W,C) -> Conv -> y (N,H,W,O)        is
    x -> Reshape (N,H,W/b,b*C) -> Conv -> (N,H,W/b,b*O) -> Reshape -> y

Exact: the sums have the same products, and further ones with weights of 0. onnxruntime's fast kernels (convsym.cpp of MLAS) take signed
weights with zero point 0, a multiple of 4 input channels and 16 output channels or more. For other convolutions it copies the data of each
tap and multiplies matrices, and depthwise ones of less than 16 channels are computed by a scalar loop. Measured with VNNI: the first layer
of a network takes 0.3 to 0.6 of the time, a depthwise layer of 4 to 12 channels 0.25 to 0.8. split_pixels reads it back.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.operators import kind_of
from qconvert.operators.sizes import stated_pads
from qconvert.passes.stored_types import as_signed
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.requantize import is_quantized

#: Of the names of tensors and constants that have several pixels in place of one.
SUFFIX = "/pixels"
#: Pixels of the data in a block; fewer have fewer weights of 0.
_BLOCKS = (2, 4, 8, 16)
#: Output channels: less than the kernels take, and from which on more pixels gain nothing.
_LEAST_RESULTS, _ENOUGH_RESULTS = 16, 32
#: Input channels up to which the weights of 0 cost less than the other kernels.
_MOST_CHANNELS, _MOST_DEPTHWISE = 32, 12


def run(graph: Graph, target: Target | None, *, weights_by_cpu: bool = False) -> PassResult:
    """Merge pixels for each convolution, channels last, whose channels the kernels do not take and whose widths whole blocks fill.

    A target on which signed weights may saturate (guard_saturation) gains nothing, unless onnxruntime chooses the weights by the CPU.
    """
    if target is not None and target.kernels.max_pair_sum and not weights_by_cpu:
        return graph, ()
    rewriter = Rewriter(graph)
    for op in rewriter:
        if kind_of(op).convolves and _has_few_channels(graph, op) and (block := _find_block(graph, op)):
            rewriter.replace(op, *_merge_pixels(rewriter, op, block))
    noun = "convolution of few channels has" if rewriter.replaced == 1 else "convolutions of few channels have"
    return rewriter.finish_with(lambda count: f"{count} {noun} neighbouring pixels as channels, for which kernels are faster")


def _has_few_channels(graph: Graph, op: Op) -> bool:
    """Whether a convolution of bytes with signed weights over two dimensions has fewer channels than the kernels take."""
    data, weights, result = (graph[name] for name in (*op.inputs[:2], op.name))
    if op["data_format"] != "channels_last" or op["arithmetic"] or not is_quantized(graph, op) or not result.is_quantized:
        return False
    sizes = [size for tensor in (data, result) for size in (tensor.shape or ())[1:]]
    if weights.rank != 4 or len(sizes) != 6 or not all(isinstance(size, int) and size for size in sizes) or set(op["dilations"]) != {1}:
        return False
    signed = as_signed(weights)
    q = signed.quantization
    if {data.dtype, weights.dtype, result.dtype} - {"int8", "uint8"} or signed.data is None or q is None or not q.is_symmetric:
        return False
    if q.block_size or q.axis not in (None, 0) or (op.has(2) and not graph[op.inputs[2]].is_constant):
        return False
    if not signed.data[..., [0, -1]].any(axis=(0, 1, 2)).all():
        return False  # split_pixels finds the width of the window by weights that are not 0
    channels, group = int(sizes[2]), int(op["group"])
    return channels <= _MOST_CHANNELS and channels % 4 != 0 if group == 1 else group == channels <= _MOST_DEPTHWISE


def _find_block(graph: Graph, op: Op) -> int:
    """Return the number of pixels in a block of the data; 0 if no number fits."""
    sizes = ([int(size) for size in (graph[name].shape or ())[1:]] for name in (op.inputs[0], op.name))
    (height, width, channels), (lines, positions, results) = sizes
    stride, fitting = int(op["strides"][1]), []
    for block in _BLOCKS:
        if block % stride or width % block or positions % (block // stride) or block * channels % 4:
            continue
        if min(height * width // block, lines * positions * stride // block) == 1:
            continue  # the Transpose of one pixel is a Reshape, which is joined to the one next to it
        if block // stride * results >= _LEAST_RESULTS and min(_window(graph, op, block)[1:]) >= 0:
            fitting.append(block)
    return next((block for block in fitting if block // stride * results >= _ENOUGH_RESULTS), max(fitting, default=0))


def _window(graph: Graph, op: Op, block: int) -> tuple[int, int, int]:
    """Return the width of the window, the padding before and the padding after each row, in blocks."""
    data, result, taps = (graph[name].shape or () for name in (op.inputs[0], op.name, op.inputs[1]))
    sizes, kernel = [[int(size) for size in shape] for shape in (data[1:3], taps[2:])]
    before, stride, pixels = stated_pads(op, sizes, kernel, op["dilations"])[1], int(op["strides"][1]), block // int(op["strides"][1])
    first, last = -before // block, ((pixels - 1) * stride - before + kernel[1] - 1) // block
    return last - first + 1, -first, int(result[2]) // pixels + last - sizes[1] // block


def _merge_pixels(rewriter: Rewriter, op: Op, block: int) -> tuple[Op, Op, Op]:
    """Return the convolution of blocks between two Reshapes."""
    graph = rewriter.graph
    data, weights, result = (graph[name] for name in (*op.inputs[:2], op.name))
    assert data.shape is not None and result.shape is not None and weights.data is not None
    taps, before, after = _window(graph, op, block)
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
    operands = [rewriter.add(f"{weights.name}{SUFFIX}", _repeat(weights, pixels), shape=shape, data=merged.reshape(shape))]
    if op.has(2):
        bias = graph[op.inputs[2]]
        assert bias.data is not None
        rows = np.tile(np.broadcast_to(bias.data.reshape(-1), (results,)), pixels)
        operands.append(rewriter.add(f"{bias.name}{SUFFIX}", _repeat(bias, pixels), shape=rows.shape, data=rows))

    blocks, found = (_spread(rewriter, tensor, count) for tensor, count in ((data, block), (result, pixels)))
    conv = replace(op, inputs=(blocks, *operands), outputs=(found,)).with_attributes(
        strides=(int(op["strides"][0]), 1), pads=(pads[0], before, pads[2], after), auto_pad="NOTSET", group=1
    )
    return _reshape(rewriter, data.name, blocks, op), conv, _reshape(rewriter, found, result.name, op)


def _spread(rewriter: Rewriter, tensor: Tensor, count: int) -> str:
    """Add a tensor with `count` neighbouring pixels as channels of one."""
    batch, height, width, channels = tensor.shape or ()
    return rewriter.add(f"{tensor.name}{SUFFIX}", tensor, shape=(batch, height, int(width) // count, int(channels) * count))


def _reshape(rewriter: Rewriter, data: str, result: str, op: Op) -> Op:
    sizes = rewriter.constant(f"{result}/sizes", [-1, *(int(size) for size in (rewriter[result].shape or ())[1:])])
    return op.derive("Reshape", (data, sizes), (result,))


def _repeat(tensor: Tensor, count: int) -> Tensor:
    """Return a constant with its scales along the first axis `count` times."""
    q = tensor.quantization
    if q is None or q.axis is None or q.scale.size == 1:
        return tensor
    return replace(tensor, quantization=Quantization(np.tile(q.scale, count), np.tile(q.zero_point, count), q.axis))
