"""Sums, products, choices and activations of integers, and QLinearConcat; Relu and Clip of stored integers."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.ops.activation import write_clip as write_stored_clip
from qconvert.formats.onnx.ops.shape import write_concat as write_stored_concat
from qconvert.formats.onnx.qoperator.forms import CONTRIB, WriteForm, one_type_reason, operand, read_form, write_form, write_one_type
from qconvert.formats.onnx.reading import NotCoveredError, ReadFunction, Reading
from qconvert.graph import Op
from qconvert.operators import is_onnxruntime_add

__all__ = ["READERS", "WRITERS"]


def read_pair(r: Reading) -> None:
    """QLinearAdd and QLinearMul: (A, A_scale, A_zero_point, B, …, C_scale, C_zero_point)."""
    read_form(r, r.op_type.removeprefix("QLinear"), (0, 3), 6)


def write_pair(op: Op, b: Builder) -> str:
    """Add and Mul."""
    if op.kind == "Add" and op["arithmetic"] and not is_onnxruntime_add(b.graph, op):
        return f"QOperator has no {op['arithmetic']} arithmetic"
    return write_one_type(op, b, f"QLinear{op.kind}")


def read_where(r: Reading) -> None:
    """QLinearWhere: (condition, X, x_scale, x_zero_point, Y, …, z_scale, z_zero_point)."""
    read_form(r, "Where", (1, 4), 7, leading=[r.input(0)])


def write_where(op: Op, b: Builder) -> str:
    """Where."""
    reason = one_type_reason(op, b, "QLinearWhere", op.inputs[1:])
    if reason:
        return reason
    inputs = [b.stored_value(op.inputs[0]), *operand(b, op.inputs[1]), *operand(b, op.inputs[2]), *b.quantization(op.outputs[0])]
    return write_form(op, b, "QLinearWhere", inputs)


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


def write_leaky_relu(op: Op, b: Builder) -> str:
    """LeakyRelu."""
    if op["arithmetic"]:
        return f"QOperator has no {op['arithmetic']} arithmetic"
    return write_one_type(op, b, "QLinearLeakyRelu", alpha=float(op["alpha"]))


def write_sigmoid(op: Op, b: Builder) -> str:
    """Sigmoid."""
    return write_one_type(op, b, "QLinearSigmoid")


def write_softmax(op: Op, b: Builder) -> str:
    """Softmax."""
    if op["arithmetic"]:
        return f"QOperator has no {op['arithmetic']} arithmetic"
    return write_one_type(op, b, "QLinearSoftmax", axis=int(op["axis"]), opset=b.opset)


def write_clip(op: Op, b: Builder) -> str:
    """Relu and Clip between tensors of one quantization: a Clip of the stored integers."""
    data, result = b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    if data.quantization is None or not data.shares_quantization(result):
        return f"QOperator has no {op.kind} from one quantization to another"
    if result.dtype not in ("int8", "uint8"):
        return f"Clip of integers takes int8 and uint8, not {result.dtype}"
    write_stored_clip(op, b)
    return ""


def read_concat(r: Reading) -> None:
    """QLinearConcat: (Y_scale, Y_zero_point, x1, x1_scale, x1_zero_point, x2, …)."""
    axis = r.attribute("axis")
    if axis is None or len(r.inputs) < 5 or len(r.inputs) % 3 != 2:
        raise r.invalid(f"{len(r.inputs)} inputs and axis {axis} do not fit", rule="axis-out-of-range")
    read_form(r, "Concat", range(2, len(r.inputs), 3), 0, axis=int(axis))


def write_concat(op: Op, b: Builder) -> str:
    """Concat: of the stored integers where all have one quantization, else QLinearConcat."""
    result = b.tensor(op.outputs[0])
    if not op["activation"] and all(b.tensor(name).shares_quantization(result) for name in op.inputs):
        write_stored_concat(op, b)
        return ""
    reason = one_type_reason(op, b, "QLinearConcat", op.inputs)
    if reason:
        return reason
    operands = [value for name in op.inputs for value in operand(b, name)]
    return write_form(op, b, "QLinearConcat", [*b.quantization(result.name), *operands], axis=int(op["axis"]))


WRITERS: Mapping[str, WriteForm] = {
    "Add": write_pair,
    "Mul": write_pair,
    "Where": write_where,
    "Clip": write_clip,
    "LeakyRelu": write_leaky_relu,
    "Relu": write_clip,
    "Sigmoid": write_sigmoid,
    "Softmax": write_softmax,
    "Concat": write_concat,
}

READERS: Mapping[str, ReadFunction] = {
    f"{CONTRIB}.QLinearAdd": read_pair,
    f"{CONTRIB}.QLinearMul": read_pair,
    f"{CONTRIB}.QLinearWhere": read_where,
    f"{CONTRIB}.QLinearLeakyRelu": read_leaky_relu,
    f"{CONTRIB}.QLinearSigmoid": read_sigmoid,
    f"{CONTRIB}.QLinearSoftmax": read_softmax,
    f"{CONTRIB}.QLinearConcat": read_concat,
}
