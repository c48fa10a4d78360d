"""Sums of products: convolutions and matrix products. Sums run over whole steps, which float64 adds exactly."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from qconvert.evaluate.call import Call, Function, activated, channels_first, channels_last
from qconvert.graph import Array

__all__ = ["FUNCTIONS", "padding"]


def padding(call: Call, sizes: tuple[int, ...], kernel: tuple[int, ...], dilations: tuple[int, ...]) -> list[tuple[int, int]]:
    """Elements to pad before and after each spatial dimension."""
    rank = len(sizes)
    mode = call["auto_pad"]
    if mode == "NOTSET":
        return [(call["pads"][i], call["pads"][rank + i]) for i in range(rank)]
    if mode == "VALID":
        return [(0, 0)] * rank
    found = []
    for size, taps, stride, dilation in zip(sizes, kernel, call["strides"], dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size, 0)
        less, more = total // 2, total - total // 2
        found.append((less, more) if mode == "SAME_UPPER" else (more, less))
    return found


def _tap(values: Array, taps: Array, group: int) -> Array:
    """One kernel position: values [..., I] times taps [O, I/group], as [rows, O]."""
    rows = values.reshape(-1, values.shape[-1])
    if group == 1:
        return np.asarray(rows @ taps.T)
    count, depth = len(rows), taps.shape[1]
    if depth == 1:
        return np.asarray(rows[:, :, None] * taps.reshape(group, -1)).reshape(count, -1)
    columns = rows.reshape(count, group, depth).transpose(1, 0, 2)
    blocks = taps.reshape(group, -1, depth).transpose(0, 2, 1)
    return np.asarray((columns @ blocks).transpose(1, 0, 2)).reshape(count, -1)


def _with_bias(call: Call, total: Array, scale: Array | float) -> Array:
    """(total + bias) * scale; the bias joins the sum as an integer where it is on the same grid, as in every integer kernel."""
    if call.has(2):
        steps, bias_scale = call.factor(2, 0)
        if np.allclose(bias_scale, scale, rtol=1e-6, atol=0) and call.quantization(2) is not None:
            return np.asarray((total + steps) * scale)
        return np.asarray(total * scale + steps * bias_scale)
    return np.asarray(total * scale)


def _convolved(call: Call, x: Array, weights: Array) -> Array:
    """The convolution of channels-last data, padded with zeros, with weights O,I,spatial, both of whole steps."""
    kernel, dilations, strides = weights.shape[2:], tuple(call["dilations"]), call["strides"]
    pads = padding(call, x.shape[1:-1], kernel, dilations)
    x = np.pad(x, [(0, 0), *pads, (0, 0)])
    sizes = [
        (size - (taps - 1) * dilation - 1) // stride + 1
        for size, taps, dilation, stride in zip(x.shape[1:-1], kernel, dilations, strides, strict=True)
    ]
    total = np.zeros((x.shape[0] * math.prod(sizes), weights.shape[0]))
    kernels = np.moveaxis(weights, (0, 1), (-2, -1))
    for at in product(*map(range, kernel)):
        window = tuple(
            slice(i * dilation, i * dilation + (size - 1) * stride + 1, stride)
            for i, dilation, size, stride in zip(at, dilations, sizes, strides, strict=True)
        )
        total += _tap(x[(slice(None), *window)], kernels[at], call["group"])
    return total.reshape(x.shape[0], *sizes, -1)


def conv(call: Call) -> Array:
    """Conv of ONNX, for any number of spatial dimensions; weights are O,I,spatial."""
    x, x_scale = call.factor(0)
    weights, w_scale = call.factor(1, 0)
    real = _with_bias(call, _convolved(call, channels_last(call, x), weights), np.asarray(x_scale * w_scale))
    return activated(channels_first(call, real), call["activation"])


def _zero_point(call: Call, index: int) -> Array:
    """The zero point that input `index` of an integer product holds; 0 if it is absent."""
    return call.raw(index).astype(np.int64) if call.has(index) else np.zeros((), np.int64)


def conv_integer(call: Call) -> Array:
    """ConvInteger of ONNX: (data, weights, zero point of data, zero point or points, one an output, of weights)."""
    x, weights = call.raw(0).astype(np.int64) - _zero_point(call, 2).reshape(()), call.raw(1).astype(np.int64)
    weights = weights - _zero_point(call, 3).reshape(-1, *[1] * (weights.ndim - 1))
    total = _convolved(call, channels_last(call, x.astype(np.float64)), weights.astype(np.float64))
    return channels_first(call, total).astype(np.int64)


def conv_transpose(call: Call) -> Array:
    """ConvTranspose of ONNX, with weights O,I,spatial: every element adds its kernel to the output, which is then cropped."""
    x, x_scale = call.factor(0)
    weights, w_scale = call.factor(1, 0)
    x = channels_last(call, x)
    kernel, strides, dilations = weights.shape[2:], call["strides"], call["dilations"]
    rank = len(kernel)
    extra = call["output_padding"]
    sizes = [(x.shape[1 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + max(extra[i], 0) for i in range(rank)]
    total = np.zeros((x.shape[0], *sizes, weights.shape[0]))
    kernels = np.moveaxis(weights, (0, 1), (-2, -1))
    for at in product(*map(range, kernel)):
        window = tuple(
            slice(at[i] * dilations[i], at[i] * dilations[i] + (x.shape[1 + i] - 1) * strides[i] + 1, strides[i]) for i in range(rank)
        )
        part = _tap(x, kernels[at], call["group"])
        total[(slice(None), *window)] += part.reshape(*x.shape[:-1], -1)
    pads = call["pads"]
    crop = tuple(slice(pads[i], sizes[i] - pads[rank + i]) for i in range(rank))
    real = _with_bias(call, total[(slice(None), *crop)], np.asarray(x_scale * w_scale))
    return activated(channels_first(call, real), call["activation"])


def gemm(call: Call) -> Array:
    """A @ B.T + C, B being O,I."""
    a, a_scale = call.factor(0)
    b, b_scale = call.factor(1, 0)
    return activated(_with_bias(call, a @ b.T, np.asarray(a_scale * b_scale)), call["activation"])


def matmul(call: Call) -> Array:
    """MatMul of ONNX after transposing the last two dimensions of either operand if asked to."""
    b_rank = call.raw(1).ndim
    a, a_scale = call.factor(0)
    b, b_scale = call.factor(1, b_rank - (2 if call["trans_b"] else 1))
    a = a.swapaxes(-1, -2) if call["trans_a"] else a
    b = b.swapaxes(-1, -2) if call["trans_b"] else b
    real = (a @ b) * (a_scale * b_scale)
    return activated(np.asarray(real), call["activation"])


def matmul_integer(call: Call) -> Array:
    """MatMulInteger of ONNX; a list of zero points has one for each row of the first and each column of the second operand."""
    zero_points = [_zero_point(call, 2), _zero_point(call, 3)]
    if zero_points[0].ndim == 1:
        zero_points[0] = zero_points[0][:, None]
    a, b = (call.raw(i).astype(np.int64) - zero_points[i] for i in (0, 1))
    return np.asarray(a @ b)


def einsum(call: Call) -> Array:
    """Einsum of ONNX: products of whole steps, summed over the letters that the right side lacks."""
    if all(tensor is not None and tensor.quantization is None for tensor in call.tensors):
        return np.asarray(np.einsum(call["equation"].replace(" ", ""), *call.all_values()))
    factors = [call.factor(index) for index in range(len(call.stored))]
    total = np.einsum(call["equation"].replace(" ", ""), *(steps for steps, _ in factors))
    return np.asarray(total * math.prod(float(scale) for _, scale in factors))


FUNCTIONS: dict[str, Function] = {
    "Conv": conv,
    "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose,
    "Gemm": gemm,
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
    "Einsum": einsum,
}
