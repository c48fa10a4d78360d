"""Pools: windows of a stated size, adaptive ones that give a stated size, and averages over everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import read_batched, size_of
from qconvert.formats.torch.ops.activation import stretch
from qconvert.formats.torch.ops.unary import scale_values
from qconvert.formats.torch.reading import ReadFunction, Reading, with_unused
from qconvert.formats.torch.values import Uncomputed

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
    f"aten::max_pool#d|quantized_max_pool#d|quantized::max_pool#d({_MAX})": read_max_pool,
    f"aten::max_pool#d_with_indices({_MAX})": with_unused(read_max_pool, _INDICES),
    f"aten::avg_pool1d({_AVERAGE})": read_average_pool,
    f"aten::avg_pool2d|avg_pool3d({_AVERAGE}, i? divisor_override=None)": read_average_pool,
    "aten::adaptive_avg_pool#d|_adaptive_avg_pool2d|_adaptive_avg_pool3d(T self, a output_size)": read_adaptive,
    "aten::adaptive_max_pool#d(T self, a output_size)": with_unused(read_adaptive, _INDICES),
}
