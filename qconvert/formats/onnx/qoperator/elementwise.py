"""QLinearAdd, QLinearMul and QLinearWhere."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.qoperator.forms import CONTRIB, WriteForm, one_type_reason, operand, read_form, write_form
from qconvert.formats.onnx.reading import ReadFunction, Reading
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
    op_type = f"QLinear{op.kind}"
    reason = one_type_reason(op, b, op_type, op.inputs)
    if reason:
        return reason
    return write_form(op, b, op_type, [*operand(b, op.inputs[0]), *operand(b, op.inputs[1]), *b.quantization(op.outputs[0])])


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


WRITERS: Mapping[str, WriteForm] = {"Add": write_pair, "Mul": write_pair, "Where": write_where}

READERS: Mapping[str, ReadFunction] = {
    f"{CONTRIB}.QLinearAdd": read_pair,
    f"{CONTRIB}.QLinearMul": read_pair,
    f"{CONTRIB}.QLinearWhere": read_where,
}
