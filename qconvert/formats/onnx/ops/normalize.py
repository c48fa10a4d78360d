"""Normalizations by statistics that are given or are the data's own."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.activation import real_dtype
from qconvert.formats.onnx.ops.elementwise import read_same_named, write_same_named
from qconvert.formats.onnx.reading import NotCoveredError, ReadFunction, Reading
from qconvert.graph import Op

__all__ = ["READERS", "WRITERS"]

#: Where a rank is unknown, an axis counted from the end is believed up to here: numpy has no more.
_MOST_AXES = 64


def write_group_normalization(op: Op, b: Builder) -> None:
    """GroupNormalization (opset 21); below, an InstanceNormalization of the groups, scaled channel by channel."""
    name, epsilon, groups = op.outputs[0], float(op["epsilon"]), op["num_groups"]
    x, scale, bias = b.float_values(op)
    if b.opset >= 21:
        b.compute(op)
        return
    data = b.tensor(op.inputs[0])
    if data.rank is None:
        raise b.unsupported_error(op, f"data of unknown rank below opset 21, in opset {b.opset},", rule="unknown-rank")
    dtype = real_dtype(op, b)
    ones, zeros = (b.const(np.full(groups, value, dtype), f"{name}/{hint}") for value, hint in ((1, "ones"), (0, "zeros")))
    rows = b.node("Reshape", [x, b.const(np.array([0, groups, -1]), f"{name}/groups")], hint=f"{name}/grouped")[0]
    even = b.node("InstanceNormalization", [rows, ones, zeros], epsilon=epsilon)[0]
    back = b.node("Reshape", [even, b.node("Shape", [x])[0]])[0]
    shape = b.const(np.array([-1] + [1] * (data.rank - 2)), f"{name}/channels")
    factor, offset = (b.node("Reshape", [value, shape])[0] for value in (scale, bias))
    b.compute(op, [b.node("Mul", [back, factor])[0], offset], "Add")


def write_layer_normalization(op: Op, b: Builder) -> None:
    """LayerNormalization (opset 17) and RMSNormalization (opset 23); below, their definitions."""
    name, axis, epsilon = op.outputs[0], op["axis"], float(op["epsilon"])
    operands = b.float_values(op)
    if b.opset >= (17 if op.kind == "LayerNormalization" else 23):
        b.compute(op)
        return
    data, x = b.tensor(op.inputs[0]), operands[0]
    if data.rank is None and not -_MOST_AXES <= axis < 0:
        raise b.unsupported_error(op, f"data of unknown rank in opset {b.opset}", rule="unknown-rank")
    axes = list(range(axis - (data.rank or 0) if axis >= 0 else axis, 0))
    if op.kind == "LayerNormalization":
        x = b.node("Sub", [x, _mean(b, x, axes)])[0]
    spread = b.node("Add", [_mean(b, b.node("Mul", [x, x])[0], axes), b.const(np.array(epsilon, real_dtype(op, b)), f"{name}/epsilon")])
    value = b.node("Div", [x, b.node("Sqrt", spread)[0]])[0]
    for kind, operand in zip(("Mul", "Add"), operands[1:], strict=False):
        if operand:
            value = b.node(kind, [value, operand], hint=f"{name}/real_result")[0]
    b.finish(op, value)


def _mean(b: Builder, value: str, axes: list[int]) -> str:
    """The mean along axes, which are an input from opset 18 on."""
    if b.opset >= 18:
        return b.node("ReduceMean", [value, b.const(np.array(axes), f"{value}/axes")])[0]
    return b.node("ReduceMean", [value], axes=axes)[0]


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


WRITERS: dict[str, WriteFunction] = {
    "BatchNormalization": write_same_named,
    "InstanceNormalization": write_same_named,
    "GroupNormalization": write_group_normalization,
    "LayerNormalization": write_layer_normalization,
    "RMSNormalization": write_layer_normalization,
}

READERS: dict[str, ReadFunction] = {
    "BatchNormalization": read_batch_normalization,
    "InstanceNormalization": read_same_named,
    "GroupNormalization": read_group_normalization,
    "LayerNormalization": read_layer_normalization,
    "RMSNormalization": read_layer_normalization,
}
