"""Normalizations by statistics that are given or are the data's own."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.ops.elementwise import read_same_named, write_named
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.values import axes, place_of
from qconvert.graph import Op

#: Where a rank is unknown, an axis counted from the end is believed up to here: numpy has no more.
_MOST_AXES = 64


def write_group_normalization(op: Op, b: Builder) -> None:
    """GroupNormalization (opset 21); below, an InstanceNormalization of the groups, scaled channel by channel."""
    epsilon, groups = float(op["epsilon"]), op["num_groups"]
    if b.opset >= 21:
        b.compute(op)
        return
    data = b.operand(op)
    if data.rank is None:
        raise b.unsupported_error(op, f"data of unknown rank below opset 21, in opset {b.opset},", rule="unknown-rank")
    at, dtype = place_of(op, b), _real_dtype(op, b)
    x, scale, bias = (at.value(name, dtype) for name in b.float_values(op))
    ones, zeros = (at.constant(np.full(groups, value), dtype) for value in (1, 0))
    even = x.then("Reshape", axes(0, groups, -1)).then("InstanceNormalization", ones, zeros, epsilon=epsilon)
    back = even.then("Reshape", x.then("Shape", dtype="int64"))
    factor, offset = (value.then("Reshape", axes(-1, *[1] * (data.rank - 2))) for value in (scale, bias))
    b.finish(op, (back * factor + offset).name)


def _real_dtype(op: Op, b: Builder) -> str:
    """The type of the float values of an operator's data.

    Raises:
        UnsupportedError: they are plain integers, of which constants next to them would lose their fractions.
    """
    tensor = b.operand(op)
    if not tensor.is_quantized and "float" not in tensor.dtype:
        raise b.unsupported_error(op, f"data of {tensor.dtype}", rule="operand-types")
    return "float32" if tensor.is_quantized else tensor.dtype


def write_layer_normalization(op: Op, b: Builder) -> None:
    """LayerNormalization (opset 17) and RMSNormalization (opset 23); below, their definitions."""
    axis, epsilon = op["axis"], float(op["epsilon"])
    if b.opset >= (17 if op.kind == "LayerNormalization" else 23):
        b.compute(op)
        return
    data = b.operand(op)
    if data.rank is None and not -_MOST_AXES <= axis < 0:
        raise b.unsupported_error(op, f"data of unknown rank in opset {b.opset}", rule="unknown-rank")
    at, dtype = place_of(op, b), _real_dtype(op, b)
    x, *operands = (at.value(name, dtype) for name in b.float_values(op))
    along = range(axis - (data.rank or 0) if axis >= 0 else axis, 0)
    if op.kind == "LayerNormalization":
        x = x - x.reduce("ReduceMean", *along)
    value = x / ((x * x).reduce("ReduceMean", *along) + epsilon).then("Sqrt")
    for kind, operand in zip(("Mul", "Add"), operands, strict=False):
        value = value.then(kind, operand) if operand.name else value
    b.finish(op, value.name)


def read_batch_normalization(r: Reading) -> None:
    """BatchNormalization of inference, with one mean and variance a channel."""
    r.require_only(training_mode=0, spatial=1)
    if any(r.is_used(index) for index in range(1, len(r.outputs))):
        raise NotCoveredError("statistics as outputs")
    r.emit("BatchNormalization", outputs=r.outputs[:1], **r.own_attributes())


def read_group_normalization(r: Reading) -> None:
    """GroupNormalization: before opset 21 it had one scale for each group, not for each channel."""
    if r.version < 21:
        raise NotCoveredError("scales for each group")
    r.require_only(stash_type=1)
    r.emit("GroupNormalization", **r.own_attributes())


def read_layer_normalization(r: Reading) -> None:
    """LayerNormalization and RMSNormalization, without the statistics as outputs.

    onnxruntime has a LayerNormalization of its own under that name in older opsets.
    """
    if r.version < 17:
        raise NotCoveredError("an opset without LayerNormalization")
    r.require_only(stash_type=1)
    if any(r.is_used(index) for index in range(1, len(r.outputs))):
        raise NotCoveredError("statistics as outputs")
    r.emit(r.op_type, outputs=r.outputs[:1], **r.own_attributes())


WRITERS: Writers = {
    "LRN": write_named,
    "BatchNormalization": write_named,
    "InstanceNormalization": write_named,
    "GroupNormalization": write_group_normalization,
    "LayerNormalization": write_layer_normalization,
    "RMSNormalization": write_layer_normalization,
}

READERS: Readers = {
    "LRN": read_same_named,
    "BatchNormalization": read_batch_normalization,
    "InstanceNormalization": read_same_named,
    "GroupNormalization": read_group_normalization,
    "LayerNormalization": read_layer_normalization,
    "RMSNormalization": read_layer_normalization,
}
