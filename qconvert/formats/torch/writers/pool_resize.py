"""Pools and Resize in float: by aten's pools and upsampling, or element by element where places are others, or are to be exact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import TORCH_AVERAGES
from qconvert.formats.torch.program import Node
from qconvert.formats.torch.writers.kernels import finish_stored, finish_torch_average
from qconvert.formats.torch.writers.layer_parts import is_symmetric, pad_data, pads_of, real_data, subtract_zero_point
from qconvert.formats.torch.writers.numbers import sizes_of
from qconvert.formats.torch.writing import Builder, WriteFunction, along_axis
from qconvert.graph import Array, Op
from qconvert.operators.space import nearest, nearest_indices, positions

_NEAREST = {("asymmetric", "floor"): "upsample_nearest", ("half_pixel", "round_prefer_ceil"): "_upsample_nearest_exact",
            ("half_pixel", "round_prefer_floor"): "_upsample_nearest_exact"}  # fmt: skip
_SMOOTH = {("linear", 1): "upsample_linear1d", ("linear", 2): "upsample_bilinear2d", ("linear", 3): "upsample_trilinear3d",
           ("cubic", 2): "upsample_bicubic2d"}  # fmt: skip


def write_resize(op: Op, b: Builder) -> None:
    """Resize: nearest and linear."""
    mode, places, spatial = op["mode"], op["coordinate_transformation_mode"], b.rank(op) - 2
    known = _spatial_sizes(op, b)
    aligned = places in ("half_pixel", "pytorch_half_pixel", "align_corners")
    if mode == "nearest":
        _write_nearest(op, b, known)
    elif mode == "linear" and known is not None and (b.wide or not aligned or spatial > 3):
        _write_linear(op, b, *known)
    elif aligned and (mode, spatial) in _SMOOTH:
        b.finish(op, b.aten(f"{_SMOOTH[mode, spatial]}.vec", b.float_input(op), sizes_of(b, op.inputs[1]), places == "align_corners", None))
    else:
        raise b.unsupported_error(op, f"mode {mode} over {spatial} axes and {places} places")


def _spatial_sizes(op: Op, b: Builder) -> tuple[list[int], list[int]] | None:
    """The spatial sizes before and after, if all are known."""
    before, after = (b.shape(op, name)[2:] for name in (op.inputs[0], op.outputs[0]))
    sizes = [[size for size in shape if isinstance(size, int)] for shape in (before, after)]
    return (sizes[0], sizes[1]) if len(sizes[0]) == len(sizes[1]) == len(before) else None


def _write_nearest(op: Op, b: Builder, known: tuple[list[int], list[int]] | None) -> None:
    """Stored values that are repeated or left out: by an operator that has these places, else by their indices along each axis."""
    places, spatial = op["coordinate_transformation_mode"], b.rank(op) - 2
    name = _nearest_operator(op, known)
    if name is not None and spatial <= 3 and not (b.wide and name != "upsample_nearest"):
        b.finish(op, b.aten(f"{name}{spatial}d.vec", b.float_input(op), sizes_of(b, op.inputs[1]), None))
        return
    if known is None:
        raise b.unsupported_error(op, f"{places} places and {op['nearest_mode']} along axes of unknown size", rule="unknown-size")
    node = b.float_input(op)
    b.note_operator()
    for axis, (before, after) in enumerate(zip(*known, strict=True), 2):
        chosen = nearest_indices(before, after, places, op["nearest_mode"])
        node = b.aten("index_select", node, axis, b.buffer(chosen, f"{op.outputs[0]}/places"))
    b.finish(op, node)


def _nearest_operator(op: Op, known: tuple[Sequence[int], Sequence[int]] | None) -> str | None:
    """The operator that takes the nearest element, without its number of axes; None if PyTorch places points otherwise.

    Of two elements that are as near, _upsample_nearest_exact takes the second: it has `round_prefer_floor` where no point is such.
    """
    places = op["coordinate_transformation_mode"]
    rounds = places == "half_pixel" and op["nearest_mode"] not in ("floor", "ceil")
    if rounds and known is not None and all(after % before == 0 for before, after in zip(*known, strict=True)):
        return "upsample_nearest"  # repeats each element
    if known is not None and places == "half_pixel" and op["nearest_mode"] == "round_prefer_floor":
        points = [positions(places, before, after) for before, after in zip(*known, strict=True)]
        if not all(np.array_equal(nearest("round_prefer_floor", *at), nearest("round_prefer_ceil", *at)) for at in points):
            return None
    return _NEAREST.get((places, op["nearest_mode"]))


def _write_linear(op: Op, b: Builder, before: list[int], after: list[int]) -> None:
    """Sums of neighbours times whole numbers, axis by axis, which are exact; all are divided at the end."""
    data, total = b.operand(op), 1
    on_quantization = b.wide and data.per_tensor is not None
    b.note_operator()
    node = (
        subtract_zero_point(b, b.stored_value(data.name), "float64", data.quantization, 0)
        if on_quantization and data.quantization
        else b.float_value(data.name)
    )
    for axis, (size, wanted) in enumerate(zip(before, after, strict=True), 2):
        numerators, denominator = positions(op["coordinate_transformation_mode"], size, wanted)
        node = _interpolate_axis(op, b, node, axis, size, (numerators, denominator))
        total *= denominator
    node = node / float(total)
    if on_quantization and op["arithmetic"] and data.quantization is not None and data.shares_quantization(b.result(op)):
        point, ties_up = data.quantization.point, op["arithmetic"] == "ties_up"
        stored = node + (point + 0.5 * ties_up) if point or ties_up else node
        finish_stored(op, b, b.aten("floor" if ties_up else "round", stored))
        return
    if on_quantization and data.quantization is not None:
        node = node * data.quantization.step
    b.finish(op, node)


def _interpolate_axis(op: Op, b: Builder, node: Node, axis: int, size: int, places: tuple[Array, int]) -> Node:
    """Values between neighbours along an axis, times the denominator of their places; outside of the data the edge continues."""
    numerators, denominator = places
    lower = numerators // denominator
    weight = along_axis(numerators - lower * denominator, axis, b.rank(op)).astype(np.float64 if b.wide else np.float32)
    sides = []
    for index, share in ((lower, denominator - weight), (lower + 1, weight)):
        chosen = b.buffer(np.clip(index, 0, size - 1), f"{op.outputs[0]}/places")
        side = b.aten("index_select", node, axis, chosen)
        sides.append(side * b.buffer(share.astype(weight.dtype), f"{op.outputs[0]}/shares"))
    return b.aten("add.Tensor", *sides)


def _can_state(pads: Sequence[int], kernel: Sequence[int]) -> bool:
    """Whether PyTorch's pools take pads: the same on both sides, and at most half of the window."""
    return is_symmetric(pads) and all(2 * pad <= size for pad, size in zip(pads, kernel, strict=False))


def write_max_pool(op: Op, b: Builder) -> None:
    """MaxPool; padding that PyTorch cannot state is added before, with the smallest value."""
    kernel = list(op["kernel_shape"])
    dilations = list(op["dilations"]) or [1] * len(kernel)
    pads = pads_of(op, b, kernel, dilations)
    fits = _can_state(pads, kernel)
    data = real_data(op, b, b.stored_input(op) if fits else pad_data(op, b, pads, float("-inf")))
    padding = pads[: len(kernel)] if fits else [0] * len(kernel)
    b.finish(op, b.aten(f"max_pool{len(kernel)}d", data, kernel, op["strides"], padding, dilations, bool(op["ceil_mode"])))


def write_average_pool(op: Op, b: Builder) -> None:
    """AveragePool. With padding that is asymmetric and not counted, each average is multiplied by window size / counted elements."""
    kernel, strides = list(op["kernel_shape"]), list(op["strides"])
    pads, counts = pads_of(op, b, kernel, [1] * len(kernel)), bool(op["count_include_pad"])
    fits = _can_state(pads, kernel)
    operator = f"avg_pool{len(kernel)}d"
    several = op["arithmetic"] in TORCH_AVERAGES and (bool(op["ceil_mode"]) or (any(op["pads"]) and not counts))
    if b.wide and op["arithmetic"] and not several and b.operand(op).shares_quantization(b.result(op)) and len(kernel) <= 3:
        write_average_of_integers(op, b, kernel, strides, pads)
        return
    if fits:
        data = b.float_input(op)
        b.finish(op, b.aten(operator, data, kernel, strides, pads[: len(kernel)], bool(op["ceil_mode"]), counts))
        return
    node = b.aten(operator, real_data(op, b, pad_data(op, b, pads, None)), kernel, strides, [0] * len(kernel), bool(op["ceil_mode"]))
    if not counts:
        if op["ceil_mode"]:
            raise b.unsupported_error(op, "padding that differs on both sides and does not count, and ceil_mode,")
        shares = math.prod(kernel) / _window_counts(op, b, kernel, strides, pads)
        node = node * b.buffer(shares if b.wide else shares.astype(np.float32), f"{op.outputs[0]}/shares")
    b.finish(op, node)


def write_average_of_integers(op: Op, b: Builder, kernel: list[int], strides: list[int], pads: list[int]) -> None:
    """The average of stored integers, whose ties go up, or away from the stored zero of the signed type (128 of uint8)."""
    data, result, size = b.operand(op), b.result(op), math.prod(kernel)
    quantization = data.require_quantization()
    node = pad_data(op, b, pads, None) if any(pads) else b.stored_value(data.name)
    node = subtract_zero_point(b, node, "float32" if size * 2.0**17 < 2**24 else "float64", quantization, 0)
    flat = len(kernel) == 1
    node = b.aten("unsqueeze", node, 2) if flat else node
    lengths = ([1, *kernel], [1, *strides], [0, 0]) if flat else (kernel, strides, [0] * len(kernel))
    total = b.aten("avg_pool3d" if len(kernel) == 3 else "avg_pool2d", node, *lengths, bool(op["ceil_mode"]), True, 1)
    total = b.aten("squeeze.dim", total, 2) if flat else total
    if op["arithmetic"] in TORCH_AVERAGES:
        finish_torch_average(op, b, total, kernel)
        return
    zero = 128 if result.dtype == "uint8" else 0
    count = _window_counts(op, b, kernel, strides, pads)

    def number(values: np.ndarray) -> Any:
        return float(values.reshape(())) if values.size == 1 else b.buffer(values.astype(np.float64), f"{result.name}/counts")

    offset, half, divisor = (number(values) for values in ((quantization.point - zero) * count, count // 2, count))
    total = total + offset
    away = op["arithmetic"] == "ties_away"
    part = (b.aten("abs", total) if away else total) + half
    average = b.aten("floor", part / divisor)
    average = average * b.aten("sign", total) if away else average
    average = average + float(zero) if zero else average
    finish_stored(op, b, average)


def _window_counts(op: Op, b: Builder, kernel: list[int], strides: list[int], pads: list[int]) -> np.ndarray:
    """The number of elements that each window counts: one number if no window crosses the border, else one for each position."""
    spatial, counts = len(kernel), bool(op["count_include_pad"])
    if not op["ceil_mode"] and (counts or not any(pads)):
        return np.full((1, 1, *[1] * spatial), math.prod(kernel))
    count = np.ones((1, 1, *[1] * spatial), np.int64)
    sizes = [b.known_sizes(op, b.shape(op, name)[2:], "windows of different sizes along axes of unknown size") for name in op.names]
    for axis, (size, wanted, taps, step) in enumerate(zip(*sizes, kernel, strides, strict=True)):
        front, back = (pads[axis], pads[spatial + axis]) if counts else (0, 0)
        starts = np.arange(wanted) * step - pads[axis]
        inside = np.minimum(starts + taps, size + back) - np.maximum(starts, -front)
        count = count * along_axis(inside, axis + 2, spatial + 2)
    return count


def write_global_average(op: Op, b: Builder) -> None:
    """GlobalAveragePool."""
    spatial = b.rank(op) - 2
    data = b.operand(op)
    sizes = [size for size in (data.shape or ())[2:] if isinstance(size, int)]
    known = b.wide and len(sizes) == spatial and data.shares_quantization(b.result(op))
    if op.attributes.get("arithmetic") and known and data.quantization is not None:
        node = subtract_zero_point(b, b.stored_value(data.name), "float64", data.quantization, 0)
        finish_torch_average(op, b, b.aten("sum.dim_IntList", node, list(range(2, spatial + 2)), True), sizes)
        return
    if spatial <= 3:
        b.finish(op, b.aten(f"adaptive_avg_pool{spatial}d", b.float_input(op), [1] * spatial))
    else:
        b.finish(op, b.aten("mean.dim", b.float_input(op), list(range(2, spatial + 2)), True))


WRITERS: Mapping[str, WriteFunction] = {
    "Resize": write_resize,
    "MaxPool": write_max_pool,
    "AveragePool": write_average_pool,
    "GlobalAveragePool": write_global_average,
    "GlobalMaxPool": lambda op, b: b.finish(op, b.aten("amax", b.float_input(op), list(range(2, b.rank(op))), True)),
}
