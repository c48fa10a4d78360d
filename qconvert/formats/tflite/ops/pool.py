"""AVERAGE_POOL_2D, MAX_POOL_2D and L2_POOL_2D, and the pools that are put together of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from qconvert.formats.tflite.ops.window import VALID, Window, own_window, window, window_fields, write_padding, write_window
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op, Shape, integer_range
from qconvert.operators.pool import average_pads
from qconvert.operators.sizes import stated_pads


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
        return w.reshape(name, [-1, *sizes], w.like(f"{result}/{hint}", name, shape))

    def write_pool(name: str, target: str, window: Sequence[int], steps: Sequence[int], activation: int) -> None:
        w.emit(builtin, [name], [target], padding=VALID, fusedActivationFunction=activation, filterHeight=window[0],
               filterWidth=window[1], strideH=steps[0], strideW=steps[1])  # fmt: skip

    images = add_reshape(data, "slices", slices, [height, width, channels])
    flat = w.like(f"{result}/of_slices", data, (slices, wanted[1], wanted[2], channels))
    write_pool(images, flat, kernel[1:], strides[1:], 0)
    columns = add_reshape(flat, "columns", batch, [depth, wanted[1] * wanted[2], channels])
    joined = w.like(f"{result}/of_columns", result, (batch, wanted[0], wanted[1] * wanted[2], channels))
    write_pool(columns, joined, (kernel[0], 1), (strides[0], 1), w.activation(op))
    w.reshape(joined, [-1, *wanted, channels], result)


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
            w.emit("MAXIMUM", [value, part], [target])
            value = target
        data = value
    if data != result:  # the last axis has one tap
        w.emit("RESHAPE", [data, w.sizes(result, op)], [result])


def _tap(w: Writing, data: str, axis: int, start: int, count: int, step: int, result: str) -> str:
    """The elements `start`, `start + step` … along an axis, `count` of them."""
    rank = w.tensor(data).rank or 0
    entries = (start, 0), (start + (count - 1) * step + 1, 0), (step, 1)
    bounds = ([own if i == axis else other for i in range(rank)] for own, other in entries)
    mask = 2**rank - 1 - 2**axis
    return w.slice_steps(data, bounds, result, beginMask=mask, endMask=mask)


def read_average_pool_2d(r: Reading) -> None:
    """AVERAGE_POOL_2D: padding is not counted. The uint8 kernel rounds x.5 up, the int8 one away from the stored zero."""
    arithmetic = {"uint8": "ties_up", "int8": "ties_away", "int16": "ties_away"}.get(r.tensor().dtype, "")
    _read_pool("AveragePool", r, arithmetic=arithmetic)


def _read_pool(kind: str, r: Reading, **more: Any) -> None:
    kernel = (r.option("filterHeight"), r.option("filterWidth"))
    r.emit_stored(kind, kernel_shape=kernel, activation=r.activation(), **more, **window(r, kernel))


READERS: Readers = {
    "AVERAGE_POOL_2D": read_average_pool_2d,
    "MAX_POOL_2D": partial(_read_pool, "MaxPool"),
    "L2_POOL_2D": partial(_read_pool, "L2Pool"),
}


def write_average_pool(op: Op, w: Writing) -> None:
    """AveragePool: TFLite knows SAME padding, which it does not count. Other padding is a PAD in front, which it counts; where ONNX does
    not, averages of float values are multiplied by how much too small they are.
    """
    flat = _is_flat(op, w)
    found = None if op["count_include_pad"] or not flat else own_window(_whole(op, w), w, op["kernel_shape"])
    if found is not None:
        _emit(op, w, "AVERAGE_POOL_2D", found)
        return
    pads, share = average_pads(op, w.shape(op.inputs[0], op, slice(1, -1)), w.shape(op.outputs[0], op, slice(1, -1)))
    data = write_padding(op, w, pads, None)

    def pool(result: str) -> None:
        if flat:
            _emit(op, w, "AVERAGE_POOL_2D", Window(data, window_fields(op, VALID)), result)
        else:
            write_volume(op, w, "AVERAGE_POOL_2D", data, result)

    if (share == 1).all():
        pool(op.outputs[0])
        return
    result = w.result(op)
    if result.is_quantized or result.dtype != "float32" or op["activation"]:
        raise w.unsupported_error(
            op, f"padding {op['pads']} that is neither counted nor SAME, of {result.dtype},", rule="padding-not-covered"
        )
    mean = w.like(f"{result.name}/with_padding", result.name, result.shape)
    pool(mean)
    factor = w.const((1 / share).astype(np.float32)[None, ..., None], f"{result.name}/factor")
    w.emit("MUL", [mean, factor], [result.name])


def _is_flat(op: Op, w: Writing) -> bool:
    """Whether a pool has two spatial dimensions; raises UnsupportedError if it has neither two nor three."""
    count = len(op["kernel_shape"])
    if count not in (2, 3) or op["data_format"] != "channels_last" or w.operand(op).rank != count + 2:
        raise w.unsupported_error(op, f"a window of {count} dimensions, or data that are not channels last", rule="form-not-covered")
    return count == 2


def write_max_pool(op: Op, w: Writing) -> None:
    """MaxPool: padding that SAME does not give is a PADV2 with the lowest value in front."""
    dtype = w.operand(op).dtype
    if dtype in ("bool", "string"):
        raise w.unsupported_error(op, f"{dtype} data", rule="operand-types")
    lowest = float(np.finfo(np.float32).min) if "float" in dtype else integer_range(dtype)[0]
    flat = _is_flat(op, w)
    if flat and not op["dilations"]:
        _emit(op, w, "MAX_POOL_2D", write_window(_whole(op, w), w, op["kernel_shape"], filler=lowest))
        return
    holes = op["dilations"] or (1,) * len(op["kernel_shape"])
    sizes, wanted = (w.shape(name, op, slice(1, -1)) for name in (op.inputs[0], op.outputs[0]))
    pads, count = stated_pads(op, sizes, op["kernel_shape"], holes), len(sizes)
    spans = [(wanted[i] - 1) * op["strides"][i] + (op["kernel_shape"][i] - 1) * holes[i] + 1 for i in range(count)]
    ends = [max(spans[i] - sizes[i] - pads[i], 0) for i in range(count)]
    data = write_padding(op, w, (*pads[:count], *ends), lowest)
    if not op["dilations"]:
        write_volume(op, w, "MAX_POOL_2D", data, op.outputs[0])
        return
    if op["activation"]:
        raise w.unsupported_error(op, f"dilations and the activation {op['activation']}", rule="form-not-covered")
    write_dilated_max(op, w, data)


def write_l2_pool(op: Op, w: Writing) -> None:
    """L2Pool: padding that SAME does not give has no form, as it does not count."""
    found = write_window(_whole(op, w), w, op["kernel_shape"])
    if found.data != op.inputs[0]:
        raise w.unsupported_error(op, f"padding {op['pads']} that is not SAME", rule="padding-not-covered")
    _emit(op, w, "L2_POOL_2D", found)


def _whole(op: Op, w: Writing) -> Op:
    """The operator with what its last windows hang over (ceil_mode) as padding at the end."""
    if not op["ceil_mode"]:
        return op
    data, size = (w.shape(name, op, slice(1, 3)) for name in (op.inputs[0], op.outputs[0]))
    begins = op["pads"][:2]
    ends = [(size[i] - 1) * op["strides"][i] + op["kernel_shape"][i] - data[i] - begins[i] for i in range(2)]
    return op.with_attributes(pads=(*begins, *(max(value, 0) for value in ends)), ceil_mode=0)


def _emit(op: Op, w: Writing, builtin: str, found: Window, result: str = "") -> None:
    if len(op["kernel_shape"]) != 2:
        raise w.unsupported_error(op, f"a window of {len(op['kernel_shape'])} dimensions", rule="form-not-covered")
    height, width = op["kernel_shape"]
    fields = {"filterHeight": height, "filterWidth": width, "fusedActivationFunction": w.activation(op)}
    w.emit(builtin, [found.data], [result or op.outputs[0]], **fields, **found.fields)


def _write_global_pool(builtin: str, op: Op, w: Writing) -> None:
    """A pool of everything as a reduction over height and width."""
    rank = w.axis(op, -1) + 1
    axes = range(1, rank - 1) if op["data_format"] == "channels_last" else range(2, rank)
    w.emit(builtin, [op.inputs[0], w.ints(axes, f"{op.outputs[0]}/axes")], op.outputs, keepDims=True)


WRITERS: Writers = {
    "AveragePool": write_average_pool,
    "MaxPool": write_max_pool,
    "L2Pool": write_l2_pool,
    "GlobalAveragePool": partial(_write_global_pool, "MEAN"),
    "GlobalMaxPool": partial(_write_global_pool, "REDUCE_MAX"),
}
