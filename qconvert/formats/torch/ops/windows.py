"""Windows of data side by side: unfold, and the sums of them that fold makes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qconvert.formats.torch.promotion import as_real
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.sizing import emit_reshape, read_batched, size_of
from qconvert.formats.torch.values import Ref
from qconvert.graph import Array, numpy_dtype

__all__ = ["OPERATORS"]

_MOST_WEIGHTS = 2**20


def _identity(c: Call, name: str, channels: int, kernel: Sequence[int]) -> Array:
    """For every channel, weights of one channel for each element of the window, which take that element."""
    count = math.prod(kernel)
    if channels * count * count > _MOST_WEIGHTS or count < 1:
        raise c.unsupported_error(f"a window of {list(kernel)} of {channels} channels", rule="shape-not-covered")
    whole = np.tile(np.eye(count), (channels, 1)).reshape(channels, count, *kernel)
    return whole.astype(numpy_dtype(c.lookup(name).dtype))


def _channels(c: Call, name: str) -> int:
    size = (c.lookup(name).shape or (None, None))[1]
    if not isinstance(size, int):
        raise c.unknown_shape("self")
    return size


def read_unfold(c: Call) -> Ref:
    """aten::im2col(x, kernel_size, dilation, padding, stride): a convolution for each channel that takes every element of the window."""
    kernel, dilations, pads, strides = (c.integers(key, 2) for key in ("kernel_size", "dilation", "padding", "stride"))
    if c.operand("self").is_quantized:
        raise c.unsupported_error("quantized data", rule="quantized-data")

    def read(name: str) -> Ref:
        channels = _channels(c, name)
        weights = c.const(_identity(c, name, channels, kernel).reshape(-1, 1, *kernel), "windows")
        found = c.emit(
            "Conv", [name, weights], hint="taken", strides=strides, dilations=dilations, pads=pads * 2, group=channels,
            data_format="channels_first",
        )  # fmt: skip
        return emit_reshape(c, found.name, [size_of(c, name, 0), channels * math.prod(kernel), -1])

    return read_batched(c, "self", 2, read)


def read_fold(c: Call) -> Ref:
    """aten::col2im(x, output_size, kernel_size, dilation, padding, stride): a transposed convolution for each channel."""
    kernel, dilations, pads, strides = (c.integers(key, 2) for key in ("kernel_size", "dilation", "padding", "stride"))
    sizes = c.integers("output_size", 2)
    counts = [
        (size + 2 * pad - dilation * (extent - 1) - 1) // max(step, 1) + 1
        for size, extent, dilation, pad, step in zip(sizes, kernel, dilations, pads, strides, strict=True)
    ]
    name = as_real(c, "self")
    if c.rank("self") != 3 or c.operand("self").is_quantized:
        raise c.unsupported_error(f"data of rank {c.rank('self')}", rule="wrong-rank")
    channels, rest = divmod(_channels(c, name), max(math.prod(kernel), 1))
    if rest or min(counts) < 1:
        raise c.invalid(f"windows of {list(kernel)} do not fit {_channels(c, name)} channels", rule="shape-mismatch")
    data = emit_reshape(c, name, [size_of(c, name, 0), channels * math.prod(kernel), *counts], hint="placed_").name
    left = [
        size - ((count - 1) * step - 2 * pad + dilation * (extent - 1) + 1)
        for size, count, step, pad, dilation, extent in zip(sizes, counts, strides, pads, dilations, kernel, strict=True)
    ]
    return c.emit(
        "ConvTranspose", [data, c.const(_identity(c, data, channels, kernel), "windows")], strides=strides,
        dilations=dilations, pads=pads * 2, output_padding=tuple(left), group=channels, data_format="channels_first",
    )  # fmt: skip


def read_windows(c: Call) -> Ref:
    """aten::unfold(x, dimension, size, step): windows of one axis, whose elements get an axis at the end."""
    rank, size, step = c.rank("self"), c.integer("size"), c.integer("step")
    axis = c.axis(c.integer("dimension"), rank)
    whole = (c.operand("self").shape or ())[axis]
    if not isinstance(whole, int):
        raise c.unknown_shape("self")
    count = (whole - size) // step + 1 if step > 0 and 0 < size <= whole else 0
    if not 0 < count * size <= _MOST_WEIGHTS:
        raise c.invalid(f"windows of {size} in steps of {step} do not fit an axis of {whole}", rule="sizes-do-not-fit")
    places = c.const(np.arange(count)[:, None] * step + np.arange(size, dtype=np.int64), "places")
    if axis == rank - 1:
        return c.emit("Gather", [c.name("self"), places], axis=axis)
    found = c.emit("Gather", [c.name("self"), places], axis=axis, hint="windows")
    order = [other for other in range(rank + 1) if other != axis + 1]
    return c.emit("Transpose", [found.name], perm=(*order, axis + 1))


_WINDOWS = "l kernel_size, l dilation, l padding, l stride"

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::im2col": Operator(f"T self, {_WINDOWS}", read_unfold),
    "aten::col2im": Operator(f"T self, l output_size, {_WINDOWS}", read_fold),
    "aten::unfold": Operator("T self, i dimension, i size, i step", read_windows),
}
