"""Softmax and normalization."""

from __future__ import annotations

import math

import numpy as np

from qconvert.plugin import Op
from qconvert_ncnn.blobs import axis_of
from qconvert_ncnn.container import pack_weights
from qconvert_ncnn.reading import Reading
from qconvert_ncnn.writing import MULTIPLIED, Step, Writing, blob_params

#: Dimensions of a blob of channels, rows and columns.
_PICTURE = 3


def write_softmax(op: Op, w: Writing) -> None:
    """Softmax, after a product with beta where that is not 1."""
    last = Step("Softmax", {0: axis_of(w.graph, op, int(op["axis"])), 1: 1}, suffix="real")
    beta, data = float(op["beta"]), (w.value(op.inputs[0]),)
    if beta == 1:
        w.finish(op, last.kind, last.params)
        return
    w.steps(op, [Step("BinaryOp", {0: MULTIPLIED, 1: 1, 2: beta}, inputs=data, suffix="scaled"), last])


def read_softmax(r: Reading) -> None:
    if not r.layer.integer(1):
        raise r.unsupported_error("of an older form", rule="form-not-covered")
    r.emit("Softmax", [r.value()], axis=r.axis(0))


def write_batch_norm(op: Op, w: Writing) -> None:
    """BatchNorm: channels, epsilon; factors, means, variances and addends."""
    scale, shift, mean, variance = (w.real(w.graph[name]).reshape(-1) for name in op.inputs[1:5])
    parts = (pack_weights(item) for item in (scale, mean, variance, shift))
    w.finish(op, "BatchNorm", {0: scale.size, 1: float(op["epsilon"])}, *parts)


def read_batch_norm(r: Reading) -> None:
    scale, mean, variance, shift = r.weights
    _require_channels(r, scale.size)
    names = [r.parameter(item, name) for item, name in ((scale, "scale"), (shift, "shift"), (mean, "mean"), (variance, "variance"))]
    r.emit("BatchNormalization", [r.value(), *names], data_format="channels_first", epsilon=r.layer.number(1))


def read_scale(r: Reading) -> None:
    """Scale and Bias: a product and a sum with one number for each channel."""
    if len(r.layer.inputs) > 1:
        raise r.unsupported_error("by values that another layer computes")
    _require_channels(r, r.weights[0].size)
    if r.layer.kind == "Bias" and len(r.shape()) != 1 + _PICTURE:
        raise r.unsupported_error(f"of data of the shape {r.shape()}")
    shape = (1, -1, *(1,) * (len(r.shape()) - 2))
    is_whole = r.layer.kind == "Bias" or len(r.weights) > 1
    value, (*factors, last) = r.value(), r.weights if is_whole else (*r.weights, np.zeros(0, np.float32))
    for factor in factors:
        value = r.step("Mul", [value, r.parameter(factor.reshape(shape), "factor")])
    if last.size:
        r.emit("Add", [value, r.parameter(last.reshape(shape), "addend")])
    else:
        r.emit("Identity", [value])


def _require_channels(r: Reading, count: int) -> None:
    if r.shape()[1] != count:
        raise r.layer.invalid(f"the number of channels is {count}, the shape of the data is {r.shape()}", rule="counts-differ")


def write_layer_norm(op: Op, w: Writing) -> None:
    """LayerNorm over the last axes, of vectors, rows or planes; other data are reshaped to rows."""
    sizes, axis = w.sizes(op.inputs[0]), axis_of(w.graph, op, int(op["axis"]))
    over, count = sizes[axis:], math.prod(sizes[axis:])
    parts = [w.real(w.graph[op.inputs[index]]) if op.has(index) else np.full(over, 2 - index, np.float32) for index in (1, 2)]
    weights = (pack_weights(np.broadcast_to(item, over)) for item in parts)
    first, params = w.value(op.inputs[0]), {0: count, 1: float(op["epsilon"]), 2: 1}
    if len(sizes) <= _PICTURE and len(over) == (2 if len(sizes) == _PICTURE and len(over) > 1 else 1):
        w.finish(op, "LayerNorm", params, *weights)
        return
    rows = (*([math.prod(sizes[:axis])] if axis else []), count)
    w.steps(op, [
        Step("Reshape", blob_params(rows), inputs=(first,), suffix="rows"),
        Step("LayerNorm", params, tuple(weights), suffix="normal"),
        Step("Reshape", blob_params(sizes), suffix="real"),
    ])  # fmt: skip


def read_layer_norm(r: Reading) -> None:
    """LayerNorm over a vector or each row; of three dimensions over each plane if the number of elements is not that of a row."""
    shape, count = r.shape(), r.layer.integer(0)
    if len(shape) > 1 + _PICTURE:
        raise r.unsupported_error(f"of data of the shape {shape}")
    axis = len(shape) - (2 if len(shape) > _PICTURE and count != shape[-1] else 1)
    if math.prod(shape[axis:]) != count:
        raise r.layer.invalid(f"the number of elements is {count}, the shape of the data is {shape}", rule="counts-differ")
    parts = [r.parameter(item.reshape(shape[axis:]), name) for item, name in zip(r.weights, ("scale", "shift"), strict=False)]
    parts = parts or [r.parameter(np.ones(shape[axis:], np.float32), "scale")]
    r.emit("LayerNormalization", [r.value(), *parts], axis=axis, epsilon=r.layer.number(1, 0.001))


def write_instance_norm(op: Op, w: Writing) -> None:
    scale, shift = (w.real(w.graph[name]).reshape(-1) for name in op.inputs[1:3])
    sizes = w.sizes(op.inputs[0])
    parts, params = tuple(pack_weights(item) for item in (scale, shift)), {0: scale.size, 1: float(op["epsilon"]), 2: 1}
    if len(sizes) == _PICTURE:
        w.finish(op, "InstanceNorm", params, *parts)
        return
    w.steps(op, [
        Step("Reshape", blob_params((sizes[0], 1, math.prod(sizes[1:]))), inputs=(w.value(op.inputs[0]),), suffix="picture"),
        Step("InstanceNorm", params, parts, suffix="normal"),
        Step("Reshape", blob_params(sizes), suffix="real"),
    ])  # fmt: skip


def read_instance_norm(r: Reading) -> None:
    count = r.layer.integer(0)
    _require_channels(r, count)
    scale, shift = r.weights or (np.ones(count, np.float32), np.zeros(count, np.float32))
    names = r.parameter(scale, "scale"), r.parameter(shift, "shift")
    r.emit("InstanceNormalization", [r.value(), *names], data_format="channels_first", epsilon=r.layer.number(1, 0.001))


def write_group_norm(op: Op, w: Writing) -> None:
    scale, shift = (w.real(w.graph[name]).reshape(-1) for name in op.inputs[1:3])
    parts = (pack_weights(item) for item in (scale, shift))
    w.finish(op, "GroupNorm", {0: int(op["num_groups"]), 1: scale.size, 2: float(op["epsilon"]), 3: 1}, *parts)


def read_group_norm(r: Reading) -> None:
    groups, count = r.layer.integer(0, 1), r.layer.integer(1)
    _require_channels(r, count)
    scale, shift = r.weights or (np.ones(count, np.float32), np.zeros(count, np.float32))
    names = r.parameter(scale, "scale"), r.parameter(shift, "shift")
    r.emit("GroupNormalization", [r.value(), *names], data_format="channels_first", num_groups=groups, epsilon=r.layer.number(2, 0.001))


READERS = {
    "Softmax": read_softmax,
    "BatchNorm": read_batch_norm,
    "Scale": read_scale,
    "Bias": read_scale,
    "LayerNorm": read_layer_norm,
    "InstanceNorm": read_instance_norm,
    "GroupNorm": read_group_norm,
}
WRITERS = {
    "Softmax": write_softmax,
    "BatchNormalization": write_batch_norm,
    "LayerNormalization": write_layer_norm,
    "InstanceNormalization": write_instance_norm,
    "GroupNormalization": write_group_norm,
}
