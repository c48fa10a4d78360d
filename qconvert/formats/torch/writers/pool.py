"""Pools, on real values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.formats.torch.writers.windows import padded_data, pads_of, symmetric
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Op

__all__ = ["WRITERS"]


def write_max_pool(op: Op, b: Builder) -> None:
    """MaxPool; padding that PyTorch cannot state is added before, with the smallest value."""
    b.channels_first(op)
    kernel = [int(size) for size in op["kernel_shape"]]
    dilations = [int(step) for step in op["dilations"]] or [1] * len(kernel)
    pads = pads_of(op, b, kernel, dilations)
    fits = symmetric(pads) and all(2 * pad <= size for pad, size in zip(pads, kernel, strict=False))
    data = b.real(op.inputs[0]) if fits else padded_data(op, b, pads, float("-inf"))
    padding = pads[: len(kernel)] if fits else [0] * len(kernel)
    b.finish(op, b.aten(f"max_pool{len(kernel)}d", data, kernel, list(op["strides"]), padding, dilations, bool(op["ceil_mode"])))


def write_average_pool(op: Op, b: Builder) -> None:
    """AveragePool; where padding that differs on both sides does not count, sums are multiplied by what counts at each place."""
    b.channels_first(op)
    kernel, strides = [int(size) for size in op["kernel_shape"]], [int(step) for step in op["strides"]]
    pads, counts = pads_of(op, b, kernel, [1] * len(kernel)), bool(op["count_include_pad"])
    fits = symmetric(pads) and all(2 * pad <= size for pad, size in zip(pads, kernel, strict=False))
    operator = f"avg_pool{len(kernel)}d"
    if fits:
        data = b.real(op.inputs[0])
        b.finish(op, b.aten(operator, data, kernel, strides, pads[: len(kernel)], bool(op["ceil_mode"]), counts))
        return
    node = b.aten(operator, padded_data(op, b, pads, None), kernel, strides, [0] * len(kernel), bool(op["ceil_mode"]))
    if not counts:
        node = b.aten("mul.Tensor", node, b.buffer(_shares(op, b, kernel, strides, pads), f"{op.outputs[0]}/shares"))
    b.finish(op, node)


def _shares(op: Op, b: Builder, kernel: list[int], strides: list[int], pads: list[int]) -> np.ndarray:
    """How many elements a window has for each of them that is no padding, at each place."""
    sizes, count = b.shape(op, op.inputs[0])[2:], len(kernel)
    if any(isinstance(size, str) for size in sizes) or op["ceil_mode"]:
        raise b.unsupported(op, "padding that differs on both sides and does not count, along axes of unknown size,")
    share = np.ones((1, 1, *[1] * count), np.float64)
    for axis, (size, taps, step) in enumerate(zip(sizes, kernel, strides, strict=True)):
        starts = np.arange(0, int(size) + pads[axis] + pads[count + axis] - taps + 1, step) - pads[axis]
        inside = np.minimum(starts + taps, int(size)) - np.maximum(starts, 0)
        share = share * (taps / inside).reshape([-1 if place == axis + 2 else 1 for place in range(count + 2)])
    return share.astype(np.float32)


def write_global_pool(op: Op, b: Builder) -> None:
    """GlobalAveragePool and GlobalMaxPool."""
    b.channels_first(op)
    spatial = b.rank(op) - 2
    if op.kind == "GlobalAveragePool" and spatial <= 3:
        b.finish(op, b.aten(f"adaptive_avg_pool{spatial}d", b.real(op.inputs[0]), [1] * spatial))
        return
    operator = "amax" if op.kind == "GlobalMaxPool" else "mean.dim"
    b.finish(op, b.aten(operator, b.real(op.inputs[0]), list(range(2, spatial + 2)), True))


WRITERS: Mapping[str, WriteFunction] = {
    "MaxPool": write_max_pool,
    "AveragePool": write_average_pool,
    "GlobalAveragePool": write_global_pool,
    "GlobalMaxPool": write_global_pool,
}
