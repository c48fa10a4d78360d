"""What the QOperator families share: operands as value, scale and zero point, results with a quantization, and reasons for having no such
form.

The types are those of onnxruntime 1.31's kernels on CPUs, which are narrower than the operators' own (docs/ContribOperators.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qconvert.arithmetic import accumulator_quantization
from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.reading import NotCoveredError, Reading
from qconvert.formats.onnx.signatures import CONTRIB
from qconvert.graph import Attribute, Op, Quantization, integer_range
from qconvert.graph.activations import activation_bounds, clip_range

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
