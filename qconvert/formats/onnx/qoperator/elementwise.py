"""Operators that QOperator has under "QLinear" and their own name, and Relu, Clip and Concat of stored integers."""

from __future__ import annotations

from typing import Any

from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.ops.activation import write_clip as write_stored_clip
from qconvert.formats.onnx.ops.pool import may_tie, pool_window, read_pool_window
from qconvert.formats.onnx.ops.shape import write_concat as write_stored_concat
from qconvert.formats.onnx.qoperator.forms import WriteForms, one_type_reason, operand, read_form, write_form, write_one_type
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.signatures import CONTRIB
from qconvert.graph import Op
from qconvert.operators import is_onnxruntime_add


def read_unary(r: Reading) -> None:
    """QLinearSigmoid, QLinearLeakyRelu, QLinearGlobalAveragePool and their like: (X, X_scale, X_zero_point, Y_scale, Y_zero_point)."""
    r.require_only(channels_last=0)
    kind = r.op_type.removeprefix("QLinear")
    read_form(r, kind, (0,), 3, **r.own_attributes(kind))


def read_pair(r: Reading) -> None:
    """QLinearAdd and QLinearMul: (A, A_scale, A_zero_point, B, …, C_scale, C_zero_point)."""
    read_form(r, r.op_type.removeprefix("QLinear"), (0, 3), 6)


def write_pair(op: Op, b: Builder) -> str:
    """Add and Mul."""
    if op.kind == "Add" and op["arithmetic"] and not is_onnxruntime_add(b.graph, op):
        return f"QOperator has no {op['arithmetic']} arithmetic"
    return write_one_type(op, b)


def write_unary(op: Op, b: Builder, **attributes: Any) -> str:
    """QLinear with the name and the attributes of ONNX's own operator, and others, without a kernel's own rounding."""
    if op.attributes.get("arithmetic"):
        return f"QOperator has no {op['arithmetic']} arithmetic"
    return write_one_type(op, b, **b.own_attributes(op), **attributes)


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


def read_softmax(r: Reading) -> None:
    """QLinearSoftmax: `opset` says which Softmax is meant; before 13 all axes from `axis` on were one, which is the same for the last."""
    axis = r.attribute("axis", -1)
    if r.attribute("opset", 13) < 13 and r.axis(axis, r.rank(0)) != r.rank(0) - 1:
        raise NotCoveredError("several axes at once")
    read_form(r, "Softmax", (0,), 3, axis=axis)


def write_softmax(op: Op, b: Builder) -> str:
    """Softmax."""
    return write_unary(op, b, opset=b.opset)


def write_clip(op: Op, b: Builder) -> str:
    """Relu and Clip between tensors of one quantization: a Clip of the stored integers."""
    data, result = b.operand(op), b.result(op)
    if data.quantization is None or not data.shares_quantization(result):
        return f"QOperator has no {op.kind} from one quantization to another"
    if result.dtype not in ("int8", "uint8"):
        return f"Clip of integers takes int8 and uint8, not {result.dtype}"
    write_stored_clip(op, b)
    return ""


def read_concat(r: Reading) -> None:
    """QLinearConcat: (Y_scale, Y_zero_point, x1, x1_scale, x1_zero_point, x2, …)."""
    if len(r.inputs) < 5 or len(r.inputs) % 3 != 2:
        raise r.invalid(f"{len(r.inputs)} inputs and axis {r.attribute('axis')} do not fit", rule="axis-out-of-range")
    read_form(r, "Concat", range(2, len(r.inputs), 3), 0, axis=r.attribute("axis"))


def write_concat(op: Op, b: Builder) -> str:
    """Concat: of the stored integers where all have one quantization, else QLinearConcat."""
    result = b.result(op)
    if not op["activation"] and all(b.tensor(name).shares_quantization(result) for name in op.inputs):
        write_stored_concat(op, b)
        return ""
    reason = one_type_reason(op, b, "QLinearConcat", op.inputs)
    if reason:
        return reason
    operands = [value for name in op.inputs for value in operand(b, name)]
    return write_form(op, b, "QLinearConcat", [*b.quantization(result.name), *operands], axis=op["axis"])


def read_average_pool(r: Reading) -> None:
    """QLinearAveragePool."""
    r.require_only(channels_last=0)
    read_form(r, "AveragePool", (0,), 3, count_include_pad=r.attribute("count_include_pad", 0), **read_pool_window(r))


def write_average_pool(op: Op, b: Builder) -> str:
    """AveragePool, where no average can be a tie that its source rounds in another way than the kernel."""
    if may_tie(op, b):
        return f"QLinearAveragePool rounds ties to even, not {op['arithmetic'].removeprefix('ties_')}"
    stated = {name: op[name] for name in ("ceil_mode", "count_include_pad")}
    return write_one_type(op, b, **pool_window(op) | stated)


def write_global_average_pool(op: Op, b: Builder) -> str:
    """GlobalAveragePool."""
    return write_one_type(op, b, channels_last=0)


def read_reduce_mean(r: Reading) -> None:
    """QLinearReduceMean: axes are an attribute."""
    axes = r.list64(r.attribute("axes", ()), "axes")
    read_form(r, "ReduceMean", (0,), 3, trailing=[axes], keepdims=r.attribute("keepdims", 1))


def write_reduce_mean(op: Op, b: Builder) -> str:
    """ReduceMean: no runtime has a kernel of QLinearReduceMean, which is a schema alone (onnxruntime 1.31)."""
    return "onnxruntime has no kernel of QLinearReduceMean"


WRITERS: WriteForms = {
    **dict.fromkeys(("Add", "Mul"), write_pair),
    **dict.fromkeys(("LeakyRelu", "Sigmoid"), write_unary),
    "Where": write_where,
    "Clip": write_clip,
    "Relu": write_clip,
    "Softmax": write_softmax,
    "Concat": write_concat,
    "AveragePool": write_average_pool,
    "GlobalAveragePool": write_global_average_pool,
    "ReduceMean": write_reduce_mean,
}

READERS: Readers = {
    **dict.fromkeys([f"{CONTRIB}.QLinear{kind}" for kind in ("Sigmoid", "LeakyRelu", "GlobalAveragePool")], read_unary),
    f"{CONTRIB}.QLinearAdd": read_pair,
    f"{CONTRIB}.QLinearMul": read_pair,
    f"{CONTRIB}.QLinearWhere": read_where,
    f"{CONTRIB}.QLinearSoftmax": read_softmax,
    f"{CONTRIB}.QLinearConcat": read_concat,
    f"{CONTRIB}.QLinearAveragePool": read_average_pool,
    f"{CONTRIB}.QLinearReduceMean": read_reduce_mean,
}
