"""Padding of sliding windows, as TFLite computes it (kernels/padding.h)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.formats.tflite.reading import Reading

__all__ = ["same_pads", "spatial_sizes", "window"]

_SAME, _VALID = 0, 1


def spatial_sizes(op: Reading, index: int = 0) -> tuple[int | str, ...]:
    """Height and width of a channels-last input of rank 4."""
    if op.rank(index) != 4:
        raise op.invalid(f"input {op.inputs[index]!r} has rank {op.rank(index)}, not 4")
    shape = op.tensor(index).shape
    assert shape is not None
    return shape[1:3]


def same_pads(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    """ONNX pads (begins, then ends) of SAME padding: the odd one goes to the end."""
    totals = []
    for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (taps - 1) * dilation + 1
        totals.append(max((-(-size // stride) - 1) * stride + reach - size, 0))
    return tuple(total // 2 for total in totals) + tuple(total - total // 2 for total in totals)


def window(op: Reading, kernel: Sequence[int], dilations: Sequence[int] = (1, 1)) -> dict[str, Any]:
    """The attributes strides, pads, auto_pad and data_format of a convolution or a pool, from its option table."""
    strides = (op.option("StrideH", 1), op.option("StrideW", 1))
    if min(*strides, *dilations, *kernel) < 1:
        raise op.invalid(f"stride {strides}, dilation {tuple(dilations)} or kernel {tuple(kernel)} is not positive")
    padding = op.option("Padding", _VALID)
    if padding not in (_SAME, _VALID):
        raise op.invalid(f"padding number {padding} does not exist")
    sizes = spatial_sizes(op)
    attributes: dict[str, Any] = {"strides": strides, "pads": (0, 0, 0, 0), "data_format": "channels_last"}
    if padding == _SAME:
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) == 2:
            attributes["pads"] = same_pads(numbers, kernel, strides, dilations)
        elif all(stride == 1 for stride in strides):
            reach = [(taps - 1) * dilation for taps, dilation in zip(kernel, dilations, strict=True)]
            attributes["pads"] = tuple(r // 2 for r in reach) + tuple(r - r // 2 for r in reach)
        else:
            attributes["auto_pad"] = "SAME_UPPER"
    return attributes
