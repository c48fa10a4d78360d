"""QLinearLeakyRelu, QLinearSigmoid and QLinearSoftmax; Relu and Clip of stored integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.ops.activation import write_clip as write_stored_clip
from qconvert.formats.onnx.qoperator.forms import CONTRIB, WriteForm, one_type_reason, operand, read_form, write_form
from qconvert.formats.onnx.reading import NotCoveredError, ReadFunction, Reading
from qconvert.graph import Op

__all__ = ["READERS", "WRITERS"]


def read_leaky_relu(r: Reading) -> None:
    """QLinearLeakyRelu."""
    read_form(r, "LeakyRelu", (0,), 3, alpha=float(r.attribute("alpha", 0.01)))


def read_sigmoid(r: Reading) -> None:
    """QLinearSigmoid."""
    read_form(r, "Sigmoid", (0,), 3)


def read_softmax(r: Reading) -> None:
    """QLinearSoftmax: `opset` says which Softmax is meant; before 13 all axes from `axis` on were one, which is the same for the last."""
    axis = int(r.attribute("axis", -1))
    if r.attribute("opset", 13) < 13 and r.axis(axis, r.rank(0)) != r.rank(0) - 1:
        raise NotCoveredError("several axes at once")
    read_form(r, "Softmax", (0,), 3, axis=axis)


def _write_one(op: Op, b: Builder, op_type: str, **attributes: Any) -> str:
    reason = one_type_reason(op, b, op_type, op.inputs)
    return reason or write_form(op, b, op_type, [*operand(b, op.inputs[0]), *b.quantization(op.outputs[0])], **attributes)


def write_leaky_relu(op: Op, b: Builder) -> str:
    """LeakyRelu."""
    if op["arithmetic"]:
        return f"QOperator has no {op['arithmetic']} arithmetic"
    return _write_one(op, b, "QLinearLeakyRelu", alpha=float(op["alpha"]))


def write_sigmoid(op: Op, b: Builder) -> str:
    """Sigmoid."""
    return _write_one(op, b, "QLinearSigmoid")


def write_softmax(op: Op, b: Builder) -> str:
    """Softmax."""
    return _write_one(op, b, "QLinearSoftmax", axis=int(op["axis"]), opset=b.opset)


def write_clip(op: Op, b: Builder) -> str:
    """Relu and Clip between tensors of one quantization: a Clip of the stored integers."""
    data, result = b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    if data.quantization is None or not data.shares_quantization(result):
        return f"QOperator has no {op.kind} from one quantization to another"
    if result.dtype not in ("int8", "uint8"):
        return f"Clip of integers takes int8 and uint8, not {result.dtype}"
    write_stored_clip(op, b)
    return ""


WRITERS: Mapping[str, WriteForm] = {
    "Clip": write_clip,
    "LeakyRelu": write_leaky_relu,
    "Relu": write_clip,
    "Sigmoid": write_sigmoid,
    "Softmax": write_softmax,
}

READERS: Mapping[str, ReadFunction] = {
    f"{CONTRIB}.QLinearLeakyRelu": read_leaky_relu,
    f"{CONTRIB}.QLinearSigmoid": read_sigmoid,
    f"{CONTRIB}.QLinearSoftmax": read_softmax,
}
