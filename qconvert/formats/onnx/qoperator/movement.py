"""QLinearConcat. Other data movement is the ordinary operator on stored integers in either form."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.ops.shape import write_concat as write_stored_concat
from qconvert.formats.onnx.qoperator.forms import CONTRIB, WriteForm, one_type_reason, operand, read_form, write_form
from qconvert.formats.onnx.reading import ReadFunction, Reading
from qconvert.graph import Op

__all__ = ["READERS", "WRITERS"]


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


WRITERS: Mapping[str, WriteForm] = {"Concat": write_concat}

READERS: Mapping[str, ReadFunction] = {f"{CONTRIB}.QLinearConcat": read_concat}
