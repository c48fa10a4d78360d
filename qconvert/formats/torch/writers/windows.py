"""Padding of windows: PyTorch's is the same on both sides of an axis; other padding is added before."""

from __future__ import annotations

from collections.abc import Sequence

from qconvert.formats.torch.nodes import Node
from qconvert.formats.torch.writing import Builder
from qconvert.graph import Op, integer_range
from qconvert.operators.spatial import SAME

__all__ = ["is_symmetric", "pad_conv_data", "pad_data", "pads_of", "real_data", "torch_pads"]


def pads_of(op: Op, b: Builder, kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """The pads before each axis, then those after each."""
    auto = op["auto_pad"]
    if auto == "NOTSET":
        return [int(pad) for pad in op["pads"]]
    if auto == "VALID":
        return [0] * (2 * len(kernel))
    front, back = [], []
    for size, taps, step, dilation in zip(b.shape(op, op.inputs[0])[2:], kernel, op["strides"], dilations, strict=True):
        if isinstance(size, str):
            raise b.unsupported_error(op, f"auto_pad {auto} along an axis of unknown size", rule="unknown-size")
        total = max((-(-size // step) - 1) * step + (taps - 1) * dilation + 1 - size, 0)
        less, more = total // 2, total - total // 2
        front.append(less if auto == SAME[0] else more)
        back.append(more if auto == SAME[0] else less)
    return front + back


def is_symmetric(pads: Sequence[int]) -> bool:
    """Whether pads are the same before and after each axis."""
    count = len(pads) // 2
    return list(pads[:count]) == list(pads[count:])


def torch_pads(begins: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Pads as PyTorch has them: both sides of the last axis first."""
    return [int(side) for pair in reversed(list(zip(begins, ends, strict=True))) for side in pair]


def pad_conv_data(op: Op, b: Builder, spatial: int) -> tuple[Node, list[int]]:
    """The stored data of a convolution, padded if its padding differs on both sides, and the padding that is left to it."""
    b.channels_first(op)
    kernel = b.shape(op, op.inputs[1])[2:]
    if any(isinstance(size, str) for size in kernel):
        raise b.unsupported_error(op, "weights of unknown size", rule="unknown-size")
    pads = pads_of(op, b, [int(size) for size in kernel], op["dilations"])
    if is_symmetric(pads):
        return b.stored_value(op.inputs[0]), pads[:spatial]
    return pad_data(op, b, pads, None), [0] * spatial


def real_data(op: Op, b: Builder, node: Node) -> Node:
    """Float values of an operator's data, or of what was padded of them."""
    data = b.tensor(op.inputs[0])
    if data.quantization is not None:
        return b.dequantize(node, data.dtype, data.quantization, data.name)
    return b.widen(node) if b.wide else node


def pad_data(op: Op, b: Builder, pads: Sequence[int], filler: float | None) -> Node:
    """Stored data after a pad: with real zero, or with the smallest value for `filler` -inf."""
    data, spatial = b.tensor(op.inputs[0]), len(pads) // 2
    quantization, value = data.quantization, filler
    if quantization is not None:
        if not quantization.is_per_tensor:
            raise b.unsupported_error(op, "data with scales along an axis", rule="quantized-data")
        value = int(quantization.zero_point[0]) if filler is None else integer_range(data.dtype)[0]
    node = b.pad(data, b.stored_value(data.name), torch_pads(pads[:spatial], pads[spatial:]), 0.0 if value is None else value)
    b.helpers.add(node)
    return node
