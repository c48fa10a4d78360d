"""QOperator forms: what all share, operands as value, scale and zero point, results with a quantization, reasons for having none;
those that are "QLinear" and an operator's own name; and Relu, Clip and Concat of stored integers.

The types are those of onnxruntime 1.31's kernels on CPUs, which are narrower than the operators' own (docs/ContribOperators.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qconvert.arithmetic import accumulator_quantization
from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.ops.activation_norm import write_clip as write_stored_clip
from qconvert.formats.onnx.ops.pool import may_tie, pool_window, read_pool_window
from qconvert.formats.onnx.ops.shape import write_concat as write_stored_concat
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.signatures import CONTRIB
from qconvert.graph import Attribute, Op, Quantization, integer_range
from qconvert.graph.activations import activation_bounds, clip_range
from qconvert.operators import is_onnxruntime_add

_BYTES = ("int8", "uint8")

#: Writes an operator in QOperator form and returns "", or adds nothing and says why it has none.
WriteForm = Callable[[Op, Builder], str]
WriteForms = Mapping[str, WriteForm]


def one_quantization(r: Reading, scale: int) -> Quantization:
    """The quantization of input `scale` and the zero point after it; raises NotCoveredError if there is more than one scale."""
    data = r.constant(scale)
    if data is not None and data.size != 1:
        raise NotCoveredError(f"{data.size} scales")
    return r.quantization(scale, scale + 1)


def read_form(
    r: Reading,
    kind: str,
    operands: Sequence[int],
    result: int,
    leading: Sequence[str] = (),
    trailing: Sequence[str] = (),
    **attributes: Any,
) -> None:
    """Appends the canonical operator `kind` of quantized operands with a quantized result.

    Args:
        r: the node.
        kind: of the canonical operator.
        operands: the indices of the inputs that hold data; each has its scale and zero point after it.
        result: the index of the result's scale, which has its zero point after it.
        leading, trailing: inputs of the canonical operator before and after the operands.
        attributes: of the canonical operator.
    """
    quantizations = [one_quantization(r, index + 1) for index in operands]
    quantization = one_quantization(r, result)
    inputs = [r.label_input(index, found) for index, found in zip(operands, quantizations, strict=True)]
    emit_result(r, kind, [*leading, *inputs, *trailing], r.tensor(operands[0]).dtype, result, quantization, **attributes)


def emit_result(
    r: Reading, kind: str, inputs: Sequence[str], dtype: str, scale: int, quantization: Quantization, **attributes: Attribute
) -> None:
    """Appends `kind` with a result on `quantization`, of the type of the zero point after input `scale`, or `dtype` if there is none."""
    stored = r.tensor(scale + 1).dtype if r.has(scale + 1) else dtype
    r.emit(kind, inputs, r.outputs[:1], dtype=stored, quantization=quantization, integers=True, **attributes)


def operand(b: Builder, name: str) -> list[str]:
    """The stored value of a quantized tensor with its scale and zero point."""
    return [b.stored_value(name), *b.quantization(name)]


def write_form(op: Op, b: Builder, op_type: str, inputs: Sequence[str], domain: str = CONTRIB, **attributes: Any) -> str:
    """Adds the node with a quantized result; a fused activation is a Clip of the integers, where the range does not imply it."""
    tensor = b.result(op)
    bounds = activation_bounds(op)
    lowest, highest = clip_range(tensor, bounds)
    is_clipped = (lowest, highest) != integer_range(tensor.dtype)
    name = b.name(f"{tensor.name}/unclipped") if is_clipped else tensor.name
    b.node(op_type, inputs, [name], domain=domain, **attributes)
    if is_clipped:
        b.clip_stored(name, tensor, lowest, highest)
    return ""


def one_type_reason(op: Op, b: Builder, op_type: str, data: Sequence[str]) -> str:
    """Why `op_type`, which takes one 8-bit type with one scale for each tensor, cannot be used; "" if it can."""
    tensors = [b.tensor(name) for name in (*data, *op.outputs)]
    for tensor in tensors:
        if tensor.quantization is None:
            return f"{op_type} takes quantized operands and results alone"
        if tensor.dtype not in _BYTES:
            return f"{op_type} takes int8 and uint8, not {tensor.dtype}"
        if not tensor.quantization.is_per_tensor:
            return f"{op_type} takes one scale for each tensor"
    found = dict.fromkeys(tensor.dtype for tensor in tensors)
    return f"{op_type} takes one type, not {' and '.join(found)}" if len(found) > 1 else ""


def linear_reason(op: Op, b: Builder, op_type: str) -> str:
    """Why the product of `op`'s first two inputs cannot be `op_type`: data and result of one 8-bit type, int8 weights with int8 data."""
    data, weights, result = b.operand(op), b.operand(op, 1), b.result(op)
    if data.quantization is None or weights.quantization is None:
        return f"{op_type} takes quantized operands alone"
    if not data.quantization.is_per_tensor:
        return f"{op_type} takes one scale for the data"
    outside = [tensor.dtype for tensor in (data, weights) if tensor.dtype not in _BYTES]
    if outside:
        return f"{op_type} takes int8 and uint8, not {outside[0]}"
    if data.dtype == "int8" and weights.dtype == "uint8":
        return f"{op_type} takes int8 data with int8 weights alone"
    if result.quantization is not None and result.dtype != data.dtype:
        return f"{op_type} gives {data.dtype} for {data.dtype} data, not {result.dtype}"
    return ""


def write_one_type(op: Op, b: Builder, **attributes: Any) -> str:
    """Writes an operator whose operands and result have one type in the form of its kind's name; see WriteForm."""
    op_type = f"QLinear{op.kind}"
    reason = one_type_reason(op, b, op_type, op.inputs)
    operands = (value for name in op.inputs for value in operand(b, name))
    return reason or write_form(op, b, op_type, [*operands, *b.quantization(op.outputs[0])], **attributes)


def stored_bias(op: Op, b: Builder) -> list[str]:
    """The integers of the bias, if there is one. Scales that are not just the implied products go into the model's metadata."""
    if not op.has(2):
        return []
    data, weights, bias = (b.tensor(name).quantization for name in op.inputs[:3])
    assert data is not None and weights is not None and bias is not None
    if bias != accumulator_quantization(data, weights):
        b.stated_scales[op.inputs[2]] = [float(scale) for scale in bias.scale]
    return [b.stored_value(op.inputs[2])]


def bias_reason(op: Op, b: Builder, op_type: str) -> str:
    """Why the bias of a Conv or Gemm does not fit `op_type`, whose bias is int32 at input scale * weight scale; "" if it does."""
    if not op.has(2):
        return ""
    bias = b.operand(op, 2)
    if bias.dtype == "int32" and bias.quantization is not None:
        return ""
    return f"{op_type} takes an int32 bias, not {bias.dtype}"


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
