"""Convolutions. Sums run over whole steps, which float64 adds exactly. Formulas: ONNX Conv and ConvTranspose (opset 22)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from qconvert.arithmetic import DYNAMIC_ROUNDINGS, effective_scale, requantize
from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op, Shape
from qconvert.operators.attributes import ACTIVATION, WINDOW, AttributeSpec, choice, has, integer, integers
from qconvert.operators.call import Call, ExactResult, apply_activation, channels_first, channels_last, clip_stored
from qconvert.operators.kind import Kind
from qconvert.operators.products import (
    DYNAMIC,
    products_of_transposed,
    products_of_windows,
    rounded_data,
    rounded_steps,
    sum_of_products,
    with_bias,
    zero_point,
)
from qconvert.operators.properties import DECIDES, Operands, any_value, without_zero_bias
from qconvert.operators.sizes import (
    UNKNOWN,
    ShapeContext,
    Shapes,
    Size,
    axes_of_space,
    channel_count,
    explicit_pads,
    failure,
    padding,
    per_spatial_axis,
    unify_sizes,
    window_sizes,
    with_spatial,
)


def _operands(op: Op, s: ShapeContext) -> tuple[Shape, Shape]:
    """Data and weights (O,I,spatial) of a convolution, checked with the groups and the bias."""
    stated, has_bias = s.shape(1), op.kind != "ConvInteger" and s.has(2)
    if stated is not None and has_bias and (bias := s.shape(2)) is not None:
        if len(bias) != 1:
            raise failure(op, f"the bias has shape {bias}, not one value for each output channel", rule="shape-mismatch")
        unify_sizes(op, [bias[0], stated[0]], "the sizes of bias and output channels")
    data, weights = s.known_shape(0), s.known_shape(1)
    axes_of_space(op, data)
    if len(weights) != len(data):
        raise failure(op, f"weights of shape {weights} do not fit data of shape {data}", rule="shape-mismatch")
    channels, depth, group = channel_count(op, data), weights[1], int(op["group"])
    if group < 1 or (isinstance(weights[0], int) and weights[0] % group):
        raise failure(op, f"{weights[0]} output channels do not divide into {group} groups", rule="groups-do-not-divide")
    if isinstance(channels, int) and isinstance(depth, int) and channels != depth * group:
        raise failure(op, f"{channels} input channels are not {group} groups of {depth}", rule="groups-do-not-divide")
    return data, weights


def _matching_channels(operands: Operands) -> Iterator[tuple[Size, Size]]:
    """The channels of the data are those of the weights (O,I,spatial) in all groups."""
    data, weights = operands.shape(0), operands.shape(1)
    if data and weights and isinstance(weights[1], int):
        yield channel_count(operands.op, data), weights[1] * int(operands.op["group"])


def _conv_shape(op: Op, s: ShapeContext) -> Shapes:
    data, weights = _operands(op, s)
    axes = axes_of_space(op, data)
    sizes = window_sizes(op, [data[axis] for axis in axes], weights[2:], per_spatial_axis(op, "dilations", len(axes), 1))
    return [with_spatial(op, data[0], sizes, weights[0])]


def _conv_transpose_shape(op: Op, s: ShapeContext) -> Shapes:
    data, weights = _operands(op, s)
    axes = axes_of_space(op, data)
    strides, pads = per_spatial_axis(op, "strides", len(axes), 1), explicit_pads(op, len(axes))
    dilations, extra = per_spatial_axis(op, "dilations", len(axes), 1), per_spatial_axis(op, "output_padding", len(axes), 0)
    sizes: list[Size] = []
    for i, axis in enumerate(axes):
        size, taps = data[axis], weights[2 + i]
        extent = UNKNOWN if isinstance(taps, str) else (taps - 1) * dilations[i] + extra[i]
        if isinstance(size, str) or isinstance(extent, str):
            sizes.append(size if strides[i] == 1 and extent == sum(pads[i]) else UNKNOWN)
        else:
            full = (size - 1) * strides[i] + 1 + extent
            if full < sum(pads[i]):
                raise failure(op, f"a crop of {sum(pads[i])} is larger than the {full} positions there are", rule="crop-too-large")
            sizes.append(full - sum(pads[i]))
    return [with_spatial(op, data[0], sizes, weights[0])]


def _tap(values: Array, taps: Array, group: int) -> Array:
    """One kernel position: values [..., I] times taps [O, I/group], as [rows, O]."""
    rows = values.reshape(-1, values.shape[-1])
    if group == 1:
        return np.asarray(rows @ taps.T)
    count, depth = len(rows), taps.shape[1]
    if depth == 1:
        return np.asarray(rows[:, :, None] * taps.reshape(group, -1)).reshape(count, taps.shape[0])
    columns = rows.reshape(count, group, depth).transpose(1, 0, 2)
    blocks = taps.reshape(group, -1, depth).transpose(0, 2, 1)
    return np.asarray((columns @ blocks).transpose(1, 0, 2)).reshape(count, taps.shape[0])


#: Elements of the windows that are multiplied at once: 8 MiB of float64.
_AT_ONCE = 1 << 20


def _exact_dtype(x: Array, columns: Array) -> type[np.float32] | type[np.float64]:
    """float32 where the summands are integers and all sums stay below 2**24: it adds them exactly, in half the time."""
    largest = np.abs(x).max(initial=0) * np.abs(columns).sum(axis=0).max(initial=0)
    whole = largest < 2**24 and (columns == np.rint(columns)).all() and (x == np.rint(x)).all()
    return np.float32 if whole else np.float64


def _products(x: Array, columns: Array, windows: Sequence[tuple[slice, ...]], sizes: Sequence[int]) -> Array:
    """The sums of products over all kernel positions at once, as [N, sizes, O]; as many rows as _AT_ONCE says.

    Args:
        x: channels-last, padded.
        columns: weights as [positions of the kernel times I, O].
        windows: by the position of the kernel, what of x it multiplies.
        sizes: spatial sizes of the result.
    """
    dtype = _exact_dtype(x, columns)
    x, columns = x.astype(dtype, copy=False), columns.astype(dtype, copy=False)
    total = np.empty((x.shape[0], *sizes, columns.shape[1]))
    step = max(1, _AT_ONCE // max(1, math.prod(sizes[1:]) * columns.shape[0]))
    for image, start in product(range(x.shape[0]), range(0, sizes[0], step)):
        parts = [x[image][window][start : start + step] for window in windows]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        total[image, start : start + step] = (rows.reshape(-1, columns.shape[0]) @ columns).reshape(*rows.shape[:-1], -1)
    return total


def _convolve(call: Call, x: Array, weights: Array) -> Array:
    """The convolution of channels-last data, padded with zeros, with weights O,I,spatial, both of whole steps."""
    kernel, dilations, strides = weights.shape[2:], tuple(call["dilations"]), call["strides"]
    pads = padding(call, x.shape[1:-1], kernel, dilations)
    x = np.pad(x, [(0, 0), *pads, (0, 0)])
    sizes = [
        (size - (taps - 1) * dilation - 1) // stride + 1
        for size, taps, dilation, stride in zip(x.shape[1:-1], kernel, dilations, strides, strict=True)
    ]
    positions = list(product(*map(range, kernel)))
    windows = [
        tuple(
            slice(i * dilation, i * dilation + (size - 1) * stride + 1, stride)
            for i, dilation, size, stride in zip(at, dilations, sizes, strides, strict=True)
        )
        for at in positions
    ]
    kernels = np.ascontiguousarray(np.moveaxis(weights, (0, 1), (-2, -1)))  # products of views are far slower
    if call["group"] == 1 and sizes and x.shape[-1]:
        columns = np.ascontiguousarray(kernels.swapaxes(-2, -1)).reshape(-1, weights.shape[0])
        return _products(x, columns, windows, sizes)
    total = np.zeros((x.shape[0] * math.prod(sizes), weights.shape[0]))
    for at, window in zip(positions, windows, strict=True):
        total += _tap(x[(slice(None), *window)], kernels[at], call["group"])
    return total.reshape(x.shape[0], *sizes, weights.shape[0])


def conv(call: Call) -> Array | ExactResult:
    """Conv of ONNX, with weights O,I,spatial; with the arithmetic "tflite" the stored result is that of the kernel."""
    x, x_scale = rounded_steps(call)
    weights, w_scale = call.factor(1, 0)
    total = _convolve(call, channels_last(call, x), weights)
    if isinstance(x_scale, np.ndarray):  # of each image, or each pixel of one that is a matrix product
        total, x_scale = total * channels_last(call, x_scale), 1.0
    real = apply_activation(channels_first(call, with_bias(call, total, np.asarray(x_scale * w_scale))), call["activation"])
    quantizations = call.quantization(0), call.quantization(1), call.results[0].quantization
    if call["arithmetic"] != "tflite" or quantizations[0] is None or quantizations[1] is None or quantizations[2] is None:
        return real
    sums = total + (call.raw(2).astype(np.int64) if call.has(2) else 0)
    factors = effective_scale(quantizations[0].scale, quantizations[1].scale, quantizations[2].scale)
    stored = channels_first(call, requantize(sums, factors, quantizations[2].point, call.results[0].dtype, "tflite_16_bits"))
    return ExactResult(real, clip_stored(call, stored))


def conv_integer(call: Call) -> Array:
    """ConvInteger of ONNX: (data, weights, zero point of data, zero point or points, one an output, of weights)."""
    x, weights = call.raw(0).astype(np.int64) - zero_point(call, 2).reshape(()), call.raw(1).astype(np.int64)
    weights = weights - zero_point(call, 3).reshape(-1, *[1] * (weights.ndim - 1))
    total = _convolve(call, channels_last(call, x.astype(np.float64)), weights.astype(np.float64))
    return channels_first(call, total).astype(np.int64)


def conv_transpose(call: Call) -> Array:
    """ConvTranspose of ONNX, with weights O,I,spatial: every element adds its kernel to the output, which is then cropped."""
    x, x_scale = rounded_data(call)
    weights, w_scale = call.factor(1, 0)
    x = channels_last(call, x)
    kernel, strides, dilations = weights.shape[2:], call["strides"], call["dilations"]
    rank = len(kernel)
    extra = call["output_padding"]
    sizes = [(x.shape[1 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + max(extra[i], 0) for i in range(rank)]
    total = np.zeros((x.shape[0], *sizes, weights.shape[0]))
    kernels = np.ascontiguousarray(np.moveaxis(weights, (0, 1), (-2, -1)))  # products of views are far slower
    for at in product(*map(range, kernel)):
        window = tuple(
            slice(at[i] * dilations[i], at[i] * dilations[i] + (x.shape[1 + i] - 1) * strides[i] + 1, strides[i]) for i in range(rank)
        )
        part = _tap(x, kernels[at], call["group"])
        total[(slice(None), *window)] += part.reshape(*x.shape[:-1], weights.shape[0])
    pads = call["pads"]
    crop = tuple(slice(pads[i], sizes[i] - pads[rank + i]) for i in range(rank))
    real = with_bias(call, total[(slice(None), *crop)], np.asarray(x_scale * w_scale))
    return apply_activation(channels_first(call, real), call["activation"])


_CONV: dict[str, AttributeSpec] = {"dilations": integers(), "group": integer(1), **WINDOW}
#: What is cropped depends on the weights alone: readers work out the auto_pad of their format.
_TRANSPOSED: dict[str, AttributeSpec] = {name: spec for name, spec in _CONV.items() if name != "auto_pad"}

KINDS = (
    Kind(
        "Conv",
        "data weights bias?",
        bounds=sum_of_products,
        matching_sizes=_matching_channels,
        products=products_of_windows,
        canonical=without_zero_bias,
        shape=_conv_shape,
        evaluate=conv,
        layout=DECIDES,
        attributes=has(_CONV, ACTIVATION, arithmetic=choice(("", "tflite", *DYNAMIC_ROUNDINGS), "")),
    ),
    Kind(
        "ConvTranspose",
        "data weights bias?",
        spreads=True,
        bounds=any_value,
        matching_sizes=_matching_channels,
        products=products_of_transposed,
        canonical=without_zero_bias,
        shape=_conv_transpose_shape,
        evaluate=conv_transpose,
        layout=DECIDES,
        attributes=has(_TRANSPOSED, ACTIVATION, DYNAMIC, output_padding=integers((0, 0))),
    ),
    Kind(
        "ConvInteger",
        "data weights zero_point? zero_point?",
        matching_sizes=_matching_channels,
        products=products_of_windows,
        shape=_conv_shape,
        rule="plain",
        float_kind="Conv",
        evaluate=conv_integer,
        types="T U T U -> int32",
        layout=DECIDES,
        attributes=has(_CONV),
    ),
)
