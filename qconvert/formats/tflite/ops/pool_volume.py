"""Pools that TFLite's two-dimensional ones are put together to: those of three dimensions, and the largest of windows with holes."""

from __future__ import annotations

from collections.abc import Sequence

from qconvert.formats.tflite.ops.window import VALID
from qconvert.formats.tflite.writing import Writing
from qconvert.graph import Op, Shape

__all__ = ["write_dilated_max", "write_volume"]


def write_volume(op: Op, w: Writing, builtin: str, data: str, result: str) -> None:
    """A pool over depth, height and width, without padding: over height and width of each slice, then over depth of each column.

    The largest of the largest is the largest of all, and the mean of means of equally many the mean of all.
    """
    kernel, strides = ([int(value) for value in op[name]] for name in ("kernel_shape", "strides"))
    depth, height, width, channels = w.shape(data, op, slice(1, None))
    batch = (w.tensor(data).shape or ("",))[0]
    wanted = [(size - taps) // step + 1 for size, taps, step in zip((depth, height, width), kernel, strides, strict=True)]
    slices = batch * depth if isinstance(batch, int) else f"{data}_slices"

    def add_reshape(name: str, hint: str, first: int | str, sizes: Sequence[int]) -> str:
        shape: Shape = (first, *sizes)
        return _write_reshape(w, name, w.like(f"{result}/{hint}", name, shape), sizes)

    def write_pool(name: str, target: str, window: Sequence[int], steps: Sequence[int], activation: int) -> None:
        w.emit(builtin, [name], [target], "Pool2DOptions", padding=VALID, fusedActivationFunction=activation, filterHeight=window[0],
               filterWidth=window[1], strideH=steps[0], strideW=steps[1])  # fmt: skip

    images = add_reshape(data, "slices", slices, [height, width, channels])
    flat = w.like(f"{result}/of_slices", data, (slices, wanted[1], wanted[2], channels))
    write_pool(images, flat, kernel[1:], strides[1:], 0)
    columns = add_reshape(flat, "columns", batch, [depth, wanted[1] * wanted[2], channels])
    joined = w.like(f"{result}/of_columns", result, (batch, wanted[0], wanted[1] * wanted[2], channels))
    write_pool(columns, joined, (kernel[0], 1), (strides[0], 1), w.activation(op))
    _write_reshape(w, joined, result, [*wanted, channels])


def _write_reshape(w: Writing, name: str, result: str, sizes: Sequence[int]) -> str:
    """A RESHAPE to sizes after a first one that is left to it."""
    w.emit("RESHAPE", [name, w.ints([-1, *sizes], f"{result}/shape")], [result], "ReshapeOptions")
    return result


def write_dilated_max(op: Op, w: Writing, data: str) -> None:
    """The largest of windows with holes, without padding: along one axis after the other, of the data from each tap on."""
    rank, result = w.tensor(data).rank or 0, op.outputs[0]
    last = rank - 3
    for position, taps in enumerate(int(value) for value in op["kernel_shape"]):
        axis, step, hole = position + 1, int(op["strides"][position]), int(op["dilations"][position])
        size = w.shape(data, op, slice(axis, axis + 1))[0]
        count = (size - (taps - 1) * hole - 1) // step + 1
        shape: Shape = tuple(count if i == axis else other for i, other in enumerate(w.tensor(data).shape or ()))
        parts = [_tap(w, data, axis, tap * hole, count, step, w.like(f"{result}/tap", data, shape)) for tap in range(taps)]
        value = parts[0]
        for part in parts[1:]:
            target = result if position == last and part == parts[-1] else w.like(f"{result}/largest", data, shape)
            w.emit("MAXIMUM", [value, part], [target], "MaximumMinimumOptions")
            value = target
        data = value
    if data != result:  # the last axis has one tap
        w.emit("RESHAPE", [data, w.sizes(result, op)], [result], "ReshapeOptions")


def _tap(w: Writing, data: str, axis: int, start: int, count: int, step: int, result: str) -> str:
    """The elements `start`, `start + step` … along an axis, `count` of them."""
    rank = axis + 1
    columns = ([0] * axis + [start], [0] * axis + [start + (count - 1) * step + 1], [1] * axis + [step])
    operands = [data, *(w.ints(column, f"{result}/{hint}") for column, hint in zip(columns, ("begin", "end", "strides"), strict=True))]
    mask = 2 ** (rank - 1) - 1
    w.emit("STRIDED_SLICE", operands, [result], "StridedSliceOptions", beginMask=mask, endMask=mask)
    return result
