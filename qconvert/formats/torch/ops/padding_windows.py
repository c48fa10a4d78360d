"""Padding, and windows of data side by side: unfold, and the sums of them that fold makes.

PyTorch lists pads from the last axis on: before and after it, before and after the one before it …
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import as_real, emit_reshape, read_batched, size_of, sizes_tensor
from qconvert.formats.torch.reading import ReadFunction, Reading
from qconvert.graph import Array, numpy_dtype

#: PyTorch's modes -> ours.
_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def emit_pad(c: Reading, pads: Sequence[Any], mode: str, value: float | None) -> str:
    """The argument `self` with pads from the last axis on. A value is rounded to the quantization of quantized data."""
    name, rank = c.name(), c.rank()
    if len(pads) % 2 or len(pads) > 2 * rank:
        raise c.invalid(f"there are {len(pads)} pads for {rank} axes", rule="counts-differ")
    if all(isinstance(pad, int) and pad == 0 for pad in pads):
        return name
    before = [0] * (rank - len(pads) // 2) + list(pads[::2])[::-1]
    following = [0] * (rank - len(pads) // 2) + list(pads[1::2])[::-1]
    inputs = [name, sizes_tensor(c, [*before, *following], "pads")]
    filler = c.filler(value, name, "padding") if mode == "constant" and value else ""  # without one it is real zero
    inputs += [filler] if filler else []
    return c.emit("Pad", inputs) if mode == "constant" else c.emit("Pad", inputs, mode=mode)


def read_pad(c: Reading) -> str:
    """aten::pad(x, pads, mode, value)."""
    if c["mode"] not in _MODES:
        raise c.invalid(f"the mode is {c['mode']!r}, not one of {', '.join(_MODES)}", rule="unknown-word")
    return emit_pad(c, c["pad"], _MODES[c["mode"]], None if c["value"] is None else c.number("value"))


def read_constant(c: Reading) -> str:
    """aten::constant_pad_nd(x, pads, value)."""
    return emit_pad(c, c["pad"], "constant", c.number("value"))


def read_mode(c: Reading) -> str:
    """aten::reflection_pad2d, replication_pad1d and their kin."""
    pads = c["padding"]
    if len(pads) != 2 * c.spatial:
        raise c.invalid(f"there are {len(pads)} pads for {c.spatial} axes", rule="counts-differ")
    return emit_pad(c, pads, "reflect" if "reflection" in c.operator else "edge", None)


_MOST_WEIGHTS = 2**20


def _identity(c: Reading, name: str, channels: int, kernel: Sequence[int]) -> Array:
    """For every channel, weights of one channel for each element of the window, which take that element."""
    count = math.prod(kernel)
    if channels * count * count > _MOST_WEIGHTS or count < 1:
        raise c.unsupported_error(f"a window of {list(kernel)} of {channels} channels", rule="shape-not-covered")
    whole = np.tile(np.eye(count), (channels, 1)).reshape(channels, count, *kernel)
    return whole.astype(numpy_dtype(c.lookup(name).dtype))


def _channels(c: Reading, name: str) -> int:
    size = (c.lookup(name).shape or (None, None))[1]
    if not isinstance(size, int):
        raise c.unknown_shape("self")
    return size


def read_unfold(c: Reading) -> str:
    """aten::im2col(x, kernel_size, dilation, padding, stride): a convolution for each channel that takes every element of the window."""
    kernel, dilations, pads, strides = (c.integers(key, 2) for key in ("kernel_size", "dilation", "padding", "stride"))
    c.require_plain(c.name())

    def read(name: str) -> str:
        channels = _channels(c, name)
        weights = c.const(_identity(c, name, channels, kernel).reshape(-1, 1, *kernel), "windows")
        found = c.emit(
            "Conv", [name, weights], hint="taken", strides=strides, dilations=dilations, pads=pads * 2, group=channels,
            data_format="channels_first",
        )  # fmt: skip
        return emit_reshape(c, found, [size_of(c, name, 0), channels * math.prod(kernel), -1])

    return read_batched(c, "self", 2, read)


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
    channels, rest = divmod(_channels(c, name), max(math.prod(kernel), 1))
    if rest or min(counts) < 1:
        raise c.invalid(f"windows of {list(kernel)} do not fit {_channels(c, name)} channels", rule="shape-mismatch")
    data = emit_reshape(c, name, [size_of(c, name, 0), channels * math.prod(kernel), *counts], hint="placed_")
    left = [
        size - ((count - 1) * step - 2 * pad + dilation * (extent - 1) + 1)
        for size, count, step, pad, dilation, extent in zip(sizes, counts, strides, pads, dilations, kernel, strict=True)
    ]
    return c.emit(
        "ConvTranspose", [data, c.const(_identity(c, data, channels, kernel), "windows")], strides=strides,
        dilations=dilations, pads=pads * 2, output_padding=tuple(left), group=channels, data_format="channels_first",
    )  # fmt: skip


def read_windows(c: Reading) -> str:
    """aten::unfold(x, dimension, size, step): windows of one axis, whose elements get an axis at the end."""
    rank, size, step = c.rank(), c.integer("size"), c.integer("step")
    axis = c.axis_of("dimension")
    whole = c.static_size(axis)
    count = (whole - size) // step + 1 if step > 0 and 0 < size <= whole else 0
    if not 0 < count * size <= _MOST_WEIGHTS:
        raise c.invalid(f"windows of {size} in steps of {step} do not fit an axis of {whole}", rule="sizes-do-not-fit")
    places = c.const(np.arange(count)[:, None] * step + np.arange(size, dtype=np.int64), "places")
    if axis == rank - 1:
        return c.emit("Gather", [c.name(), places], axis=axis)
    found = c.emit("Gather", [c.name(), places], axis=axis, hint="windows")
    order = [other for other in range(rank + 1) if other != axis + 1]
    return c.emit("Transpose", [found], perm=(*order, axis + 1))


_WINDOWS = "l kernel_size, l dilation, l padding, l stride"

OPERATORS: Mapping[str, ReadFunction] = {
    "aten::pad(T self, l pad, s mode='constant', f? value=None)": read_pad,
    "aten::constant_pad_nd(T self, l pad, f value=0)": read_constant,
    "aten::reflection_pad#d|replication_pad#d(T self, l padding)": read_mode,
    f"aten::im2col(T self, {_WINDOWS})": read_unfold,
    f"aten::col2im(T self, l output_size, {_WINDOWS})": read_fold,
    "aten::unfold(T self, i dimension, i size, i step)": read_windows,
}
