"""Convolutions: of plain tensors, in the forms that PyTorch's programs have before and after its decompositions, with packed parameters,
and those that unfold and fold are. Pools: windows of a stated size, adaptive ones that give a stated size, and averages over everything.

Of dynamic range, float data are quantized at each run, and the result too: ATen/native/quantized/cpu/qconv_dynamic.cpp passes the scale and
zero point of the data to the quantized convolution as those of the result, and dequantizes the result; values outside of the data's range
are clipped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import Part, as_real, emit_reshape, find_dequantized_source, read_batched, rearrange_constant, size_of
from qconvert.formats.torch.ops.activation import stretch
from qconvert.formats.torch.ops.matrix import bias_of, require_real, rounding_of
from qconvert.formats.torch.ops.unary import scale_values
from qconvert.formats.torch.reading import ReadFunction, Reading, with_unused
from qconvert.formats.torch.values import Packed, Uncomputed
from qconvert.graph import Array, Quantization, numpy_dtype
from qconvert.operators.sizes import swapped_scales, swapped_weights
from qconvert.operators.values import Value, apply, clip, where


def _sizes(c: Reading, spatial: int) -> dict[str, Any]:
    """Strides, dilations and groups."""
    sizes = {"strides": c.integers("stride", spatial), "dilations": c.integers("dilation", spatial)}
    if any(len(values) != spatial for values in sizes.values()):
        raise c.invalid(f"the strides and dilations {sizes} are not of {spatial} axes", rule="counts-differ")
    return {**sizes, "group": c.integer("groups"), "data_format": "channels_first"}


def read_conv(c: Reading) -> str:
    """aten::conv1d, 2d, 3d: padding by numbers, or "same" and "valid"."""
    spatial = c.spatial
    sizes = _sizes(c, spatial)
    pads = _named_padding(c, sizes, spatial) if isinstance(c["padding"], str) else c.integers("padding", spatial) * 2
    factors = [c.name("weight"), *c.names("bias")]
    return read_batched(c, spatial, lambda name: c.emit("Conv", [name, *factors], quantization=None, pads=pads, **sizes))


def _named_padding(c: Reading, sizes: dict[str, Any], spatial: int) -> tuple[int, ...]:
    """Of "same": what is odd goes after."""
    if c["padding"] == "valid":
        return (0,) * (2 * spatial)
    kernel = c.lookup(c.name("weight")).static_shape
    if c["padding"] != "same" or kernel is None or any(stride != 1 for stride in sizes["strides"]):
        raise c.unsupported_error(f"padding {c['padding']!r} and strides {sizes['strides']}")
    totals = [step * (size - 1) for step, size in zip(sizes["dilations"], kernel[2:], strict=True)]
    return (*(total // 2 for total in totals), *(total - total // 2 for total in totals))


def read_transposed(c: Reading) -> str:
    """aten::conv_transpose1d, 2d, 3d, whose weights PyTorch has as I,O/groups,spatial."""
    spatial = c.spatial
    sizes, groups, shape = _sizes(c, spatial), c.integer("groups"), c.static_shape("weight")
    if len(shape) != spatial + 2 or groups < 1 or shape[0] % groups:
        raise c.invalid(f"{groups} groups do not fit weights of shape {shape} for {spatial} axes", rule="counts-differ")
    name = c.name("weight")
    weights = (
        find_dequantized_source(c, name, lambda data: swapped_weights(data, groups))
        or rearrange_constant(
            c, name, lambda data: swapped_weights(data, groups), lambda quantization: _swap_scales(c, quantization, groups)
        )
        or _transpose_weights(c, groups, spatial)
    )
    pads, padding = c.integers("padding", spatial) * 2, c.integers("output_padding", spatial)
    factors = [weights, *c.names("bias")]
    return read_batched(
        c,
        spatial,
        lambda name: c.emit("ConvTranspose", [name, *factors], quantization=None, pads=pads, output_padding=padding, **sizes),
    )


def _swap_scales(c: Reading, quantization: Quantization, groups: int) -> Quantization:
    """The quantization of weights with the outputs first."""
    swapped = swapped_scales(quantization, groups, c.static_shape("weight")[1])
    if swapped is None:
        raise c.unsupported_error(f"scales along the inputs of a transposed convolution of {groups} groups")
    return swapped


def _transpose_weights(c: Reading, groups: int, spatial: int) -> str:
    """Weights that are computed at run time, with the outputs first."""
    name = c.name("weight")
    if groups == 1:
        return c.emit("Transpose", [name], hint="weights", perm=(1, 0, *range(2, spatial + 2)))
    inputs, outputs, *kernel = c.static_shape("weight")
    split = c.emit("Reshape", [name, c.list64([groups, inputs // groups, outputs, *kernel], "split_shape")], hint="split")
    turned = c.emit("Transpose", [split], hint="turned", perm=(0, 2, 1, *range(3, spatial + 3)))
    return c.emit("Reshape", [turned, c.list64([groups * outputs, inputs // groups, *kernel], "weights_shape")], hint="weights")


def read_convolution(c: Reading) -> str:
    """aten::convolution, what PyTorch's decompositions make of all convolutions."""
    return read_transposed(c) if c["transposed"] else read_conv(c)


def _emit_packed_conv(c: Reading, quantization: Quantization | None, *, hint: str = "", **attributes: Any) -> str:
    """The convolution of packed parameters, transposed if the operator's name says so."""
    packed = c.packed_parameters("weight" if "weight" in c else "packed_weight")
    weights, sizes = _kernel_of(c, packed)
    kind = "ConvTranspose" if "transpose" in c.operator else "Conv"
    if kind == "ConvTranspose":
        sizes = {"output_padding": packed.output_padding[len(packed.output_padding) - c.spatial :], **sizes}
    inputs = [c.name(), weights, *bias_of(c, packed)]
    return c.emit(kind, inputs, quantization=quantization, hint=hint, **attributes, **sizes)


def _kernel_of(c: Reading, packed: Packed) -> tuple[str, dict[str, Any]]:
    """The weights as O,I,spatial, and the sizes along as many axes; layers of one axis are stored as of two."""
    data, axis = packed.weight.data, packed.weight.axis
    cut = len(packed.weight.shape) - 2 - c.spatial
    if cut < 0 or any(size != 1 for size in packed.weight.shape[2 : 2 + cut]):
        raise c.invalid(f"weights of shape {packed.weight.shape} do not fit {c.spatial} axes", rule="wrong-rank")
    data = data.reshape(*data.shape[:2], *data.shape[2 + cut :]) if cut else data
    if packed.transposed:
        if axis is not None and (axis != 1 or packed.groups != 1):
            raise c.unsupported_error(
                "per-channel scales along the inputs of a transposed convolution, or in groups,", rule="form-not-covered"
            )
        data, axis = swapped_weights(data, packed.groups), 0
    name = c.add_constant(packed.weight, f"{packed.name}.weight", data, axis)
    sizes = {"strides": packed.stride[cut:], "dilations": packed.dilation[cut:], "pads": packed.padding[cut:] * 2, "group": packed.groups}
    return name, {**sizes, "data_format": "channels_first"}


def read_quantized_conv(c: Reading) -> str:
    """quantized::conv1d, 2d, 3d, each also with a Relu.

    The overload of PyTorch before 1.6 states strides, paddings, dilations and groups too. The kernel takes those that are packed with the
    weights, and ignores these (QConvInt8ForBC in qconv.cpp).
    """
    return _emit_packed_conv(c, c.output_quantization(), activation=c.activation)


def read_dynamic_conv(c: Reading) -> Value:
    """quantized::conv2d_dynamic, conv_transpose2d_dynamic and their kin: the result is rounded to the quantization of the data's range."""
    data = c.name()
    require_real(c, data)
    result = Part(c, _emit_packed_conv(c, None, hint="unrounded", arithmetic=rounding_of(c["reduce_range"])))
    axes = c.list64(list(range(c.rank())), "axes")
    ends = [c.emit(f"Reduce{kind}", [data, axes], hint=kind.lower(), keepdims=0) for kind in ("Min", "Max")]
    low, high = (apply(kind, Part(c, end), 0) for kind, end in zip(("Min", "Max"), ends, strict=True))
    span = (high - low) / (127 if c["reduce_range"] else 255)
    scale = where(apply("Equal", span, 0, hint="empty"), 0.1, span, hint="scale")
    point = apply("Round", -low / scale, hint="zero_point")
    steps = clip(apply("Round", result / scale) + point, 0, 255, hint="steps")
    return apply("Mul", steps - point, scale, hint="")


_MOST_WEIGHTS = 2**20


def _identity(c: Reading, name: str, channels: int, kernel: Sequence[int]) -> Array:
    """For every channel, weights of one channel for each element of the window, which take that element."""
    count = math.prod(kernel)
    if channels * count * count > _MOST_WEIGHTS or count < 1:
        raise c.unsupported_error(f"a window of {list(kernel)} of {channels} channels", rule="shape-not-covered")
    whole = np.tile(np.eye(count), (channels, 1)).reshape(channels, count, *kernel)
    return whole.astype(numpy_dtype(c.lookup(name).dtype))


def read_unfold(c: Reading) -> str:
    """aten::im2col(x, kernel_size, dilation, padding, stride): a convolution for each channel that takes every element of the window."""
    kernel, dilations, pads, strides = (c.integers(key, 2) for key in ("kernel_size", "dilation", "padding", "stride"))
    c.require_plain(c.name())

    def read(name: str) -> str:
        channels = c.static_size(1, name)
        weights = c.const(_identity(c, name, channels, kernel).reshape(-1, 1, *kernel), "windows")
        found = c.emit(
            "Conv", [name, weights], hint="taken", strides=strides, dilations=dilations, pads=pads * 2, group=channels,
            data_format="channels_first",
        )  # fmt: skip
        return emit_reshape(c, found, [size_of(c, name, 0), channels * math.prod(kernel), -1])

    return read_batched(c, 2, read)


def read_fold(c: Reading) -> str:
    """aten::col2im(x, output_size, kernel_size, dilation, padding, stride): a transposed convolution for each channel."""
    kernel, dilations, pads, strides = (c.integers(key, 2) for key in ("kernel_size", "dilation", "padding", "stride"))
    sizes = c.integers("output_size", 2)
    counts = [
        (size + 2 * pad - dilation * (extent - 1) - 1) // max(step, 1) + 1
        for size, extent, dilation, pad, step in zip(sizes, kernel, dilations, pads, strides, strict=True)
    ]
    name = as_real(c)
    if c.rank() != 3 or c.operand().is_quantized:
        raise c.unsupported_error(f"data of rank {c.rank('self')}", rule="wrong-rank")
    channels, rest = divmod(c.static_size(1), max(math.prod(kernel), 1))
    if rest or min(counts) < 1:
        raise c.invalid(f"windows of {list(kernel)} do not fit {c.static_size(1)} channels", rule="shape-mismatch")
    data = emit_reshape(c, name, [size_of(c, name, 0), channels * math.prod(kernel), *counts], hint="placed_")
    left = [
        size - ((count - 1) * step - 2 * pad + dilation * (extent - 1) + 1)
        for size, count, step, pad, dilation, extent in zip(sizes, counts, strides, pads, dilations, kernel, strict=True)
    ]
    return c.emit(
        "ConvTranspose", [data, c.const(_identity(c, data, channels, kernel), "windows")], strides=strides,
        dilations=dilations, pads=pads * 2, output_padding=tuple(left), group=channels, data_format="channels_first",
    )  # fmt: skip


_OUTPUT = "f output_scale, i output_zero_point"
_WINDOWS = "l kernel_size, l dilation, l padding, l stride"
_CONV = "T input, T weight, T? bias=None, l stride=1"
_CONVOLUTION = "T input, T weight, T? bias, l stride, l padding, l dilation, b transposed, l output_padding, i groups"


#: Windows of an adaptive pool along an axis.
_MOST_WINDOWS = 4096


def _windows(c: Reading) -> dict[str, Any]:
    """The attributes that maximum and average share; a stride that is not stated is the kernel's."""
    spatial = c.spatial
    kernel = c.integers("kernel_size", spatial)
    stride = c.integers("stride", spatial) or kernel
    padding = c.integers("padding", spatial)
    if not len(kernel) == len(stride) == len(padding) == spatial:
        raise c.invalid(f"kernel {kernel}, stride {stride} and padding {padding} are not of {spatial} axes", rule="counts-differ")
    if any(2 * pad > size for pad, size in zip(padding, kernel, strict=True)):
        raise c.invalid(f"the padding {padding} is more than half of the kernel {kernel}", rule="padding-out-of-range")
    return {
        "kernel_shape": kernel,
        "strides": stride,
        "pads": padding * 2,
        "ceil_mode": int(bool(c["ceil_mode"])),
        "data_format": "channels_first",
    }


def read_max_pool(c: Reading) -> str:
    """max_pool1d, 2d, 3d."""
    dilations = c.integers("dilation", c.spatial)
    attributes = {**_windows(c), "dilations": dilations if any(step != 1 for step in dilations) else ()}
    return read_batched(c, c.spatial, lambda name: c.emit("MaxPool", [name], **attributes))


def read_average_pool(c: Reading) -> str:
    """avg_pool1d, 2d, 3d: padding counts unless the call says otherwise; a divisor of its own may stand for the count."""
    attributes = {**_windows(c), "count_include_pad": int(bool(c["count_include_pad"]))}
    if c.get("divisor_override") is None:
        return read_batched(c, c.spatial, lambda name: c.emit("AveragePool", [name], **attributes))
    if attributes["ceil_mode"]:
        raise c.unsupported_error("divisor_override and ceil_mode")
    if not c.integer("divisor_override"):
        raise c.invalid("divisor_override is 0", rule="divisor-zero")
    factor = math.prod(attributes["kernel_shape"]) / c.integer("divisor_override")
    attributes["count_include_pad"] = 1
    return read_batched(c, c.spatial, lambda name: _emit_scaled_average(c, name, factor, attributes))


def _emit_scaled_average(c: Reading, name: str, factor: float, attributes: dict[str, Any]) -> str:
    """An average times a number: of a quantized tensor the average of the same integers with a quantization that much larger."""
    quantization = c.lookup(name).quantization
    if quantization is None:
        return scale_values(c, c.emit("AveragePool", [name], hint="average", **attributes), factor)
    return c.emit("AveragePool", [stretch(c, name, factor)], quantization=quantization, **attributes)


def _output_sizes(c: Reading, name: str) -> list[int]:
    """The sizes that an adaptive pool gives; one that is not stated is the data's."""
    spatial = c.spatial
    listed = c.items("output_size")
    listed = listed * spatial if len(listed) == 1 else listed
    if len(listed) != spatial:
        raise c.invalid(f"the output size {c['output_size']} is not of {spatial} axes", rule="counts-differ")
    for axis, size in enumerate(listed):
        if size is None:
            listed[axis] = size_of(c, name, 2 + axis)
    wanted = [size if isinstance(size, int) else c.whole(size, "output_size") for size in listed]
    if not all(0 < size <= _MOST_WINDOWS for size in wanted):
        raise c.invalid(f"the output size is {wanted}, which is not positive or too large", rule="too-many-elements")
    return wanted


def _kernel_and_stride(bounds: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Kernel and stride of windows that have one size and one distance; None for others."""
    sizes = {end - start for start, end in bounds}
    steps = {second[0] - first[0] for first, second in itertools.pairwise(bounds)}
    return None if len(sizes) > 1 or len(steps) > 1 else (sizes.pop(), steps.pop() if steps else 1)


def _emit_adaptive_pool(c: Reading, name: str) -> str:
    """An adaptive pool: of everything, of regular windows, or of windows of several sizes."""
    wanted, kind = _output_sizes(c, name), "MaxPool" if "max" in c.operator else "AveragePool"
    if all(size == 1 for size in wanted):
        return c.emit(f"Global{kind}", [name], data_format="channels_first")
    shape = c.lookup(name).shape
    sizes = shape[2:] if shape is not None and len(shape) == len(wanted) + 2 else ()
    if not sizes or any(isinstance(size, str) for size in sizes):
        raise c.unknown_shape()
    bounds = [
        [(index * int(size) // count, -(-(index + 1) * int(size) // count)) for index in range(count)]
        for size, count in zip(sizes, wanted, strict=True)
    ]
    found = [_kernel_and_stride(each) for each in bounds]
    if all(each is not None and each[1] > 0 for each in found):
        kernel, strides = zip(*(pair for pair in found if pair is not None), strict=True)
        return _emit_pool(c, kind, name, kernel, strides)
    return _emit_uneven_pool(c, kind, name, bounds, ())


def _emit_pool(c: Reading, kind: str, name: str, kernel: tuple[int, ...], strides: tuple[int, ...], hint: str = "") -> str:
    """A pool without padding."""
    pads = (0,) * 2 * len(kernel)
    return c.emit(kind, [name], hint=hint, kernel_shape=kernel, strides=strides, pads=pads, data_format="channels_first")


def _emit_uneven_pool(c: Reading, kind: str, name: str, bounds: Sequence[Sequence[tuple[int, int]]], kernel: tuple[int, ...]) -> str:
    """Windows of several sizes: a pool for each size, of which the windows wanted are taken and put in order, axis by axis.

    Args:
        c: the call.
        kind: AveragePool or MaxPool.
        name: of the data.
        bounds: of the windows along each axis.
        kernel: sizes along the first axes, which are decided already.
    """
    axis = len(kernel)
    if axis == len(bounds):
        return _emit_pool(c, kind, name, kernel, (1,) * axis, f"windows{'x'.join(map(str, kernel))}")
    sizes = sorted({end - start for start, end in bounds[axis]})
    groups = [[index for index, (start, end) in enumerate(bounds[axis]) if end - start == size] for size in sizes]
    parts = []
    for size, group in zip(sizes, groups, strict=True):
        whole = _emit_uneven_pool(c, kind, name, bounds, (*kernel, size))
        starts = c.list64([bounds[axis][index][0] for index in group], f"{whole}/starts")
        parts.append(c.emit("Gather", [whole, starts], hint=f"taken{'x'.join(map(str, (*kernel, size)))}", axis=2 + axis))
    hint = f"sizes{'x'.join(map(str, kernel))}" if kernel else ""
    if len(parts) == 1:
        return parts[0]
    joined = c.emit("Concat", parts, hint=f"{hint}/joined", axis=2 + axis)
    order = np.argsort([index for group in groups for index in group])
    return c.emit("Gather", [joined, c.list64(order.tolist(), f"{hint}/order")], hint=hint, axis=2 + axis)


def read_adaptive(c: Reading) -> str:
    """adaptive_avg_pool and adaptive_max_pool."""
    return read_batched(c, c.spatial, lambda name: _emit_adaptive_pool(c, name))


#: Which position each element had.
_INDICES = Uncomputed("the indices of a max pool")
_WINDOW = "T self, l kernel_size, l stride=(), l padding=0"
_MAX = f"{_WINDOW}, l dilation=1, b ceil_mode=False"
_AVERAGE = f"{_WINDOW}, b ceil_mode=False, b count_include_pad=True"

OPERATORS: Mapping[str, ReadFunction] = {
    f"aten::conv#d({_CONV}, l padding=0, l dilation=1, i groups=1)": read_conv,
    f"aten::conv#d({_CONV}, s padding='valid', l dilation=1, i groups=1)": read_conv,
    f"aten::conv_transpose#d({_CONV}, l padding=0, l output_padding=0, i groups=1, l dilation=1)": read_transposed,
    "aten::_convolution_mode(T input, T weight, T? bias, l stride, s padding, l dilation, i groups)": read_conv,
    f"aten::convolution({_CONVOLUTION})": read_convolution,
    "quantized::conv#d_dynamic|conv_transpose#d_dynamic(T qx, o packed_weight, b reduce_range=False)": read_dynamic_conv,
    f"quantized::conv#d|conv#d_relu(q qx, o packed_weight, {_OUTPUT})": read_quantized_conv,
    f"quantized::conv#d|conv#d_relu(q qx, o weight, l stride, l padding, l dilation, i groups, {_OUTPUT})": read_quantized_conv,
    f"quantized::conv_transpose#d(q qx, o packed_weight, {_OUTPUT})": lambda c: _emit_packed_conv(c, c.output_quantization()),
    f"aten::im2col(T self, {_WINDOWS})": read_unfold,
    f"aten::col2im(T self, l output_size, {_WINDOWS})": read_fold,
    f"aten::_convolution({_CONVOLUTION}, b benchmark, b deterministic, b cudnn_enabled, b allow_tf32=True)": read_convolution,
    f"aten::max_pool#d|quantized_max_pool#d|quantized::max_pool#d({_MAX})": read_max_pool,
    f"aten::max_pool#d_with_indices({_MAX})": with_unused(read_max_pool, _INDICES),
    f"aten::avg_pool1d({_AVERAGE})": read_average_pool,
    f"aten::avg_pool2d|avg_pool3d({_AVERAGE}, i? divisor_override=None)": read_average_pool,
    "aten::adaptive_avg_pool#d|_adaptive_avg_pool2d|_adaptive_avg_pool3d(T self, a output_size)": read_adaptive,
    "aten::adaptive_max_pool#d(T self, a output_size)": with_unused(read_adaptive, _INDICES),
}
