"""QLinearConv, of ai.onnx and of com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.arithmetic import accumulator_quantization
from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.ops.conv import conv_window, read_conv_window
from qconvert.formats.onnx.qoperator.forms import (
    WriteForm,
    bias_reason,
    emit_result,
    linear_reason,
    one_quantization,
    operand,
    stored_bias,
    write_form,
)
from qconvert.formats.onnx.reading import ReadFunction, Reading
from qconvert.formats.onnx.signatures import CONTRIB
from qconvert.graph import Op, Quantization


def read_qlinear_conv(r: Reading) -> None:
    """QLinearConv(x, x_scale, x_zero_point, w, …, y_scale, y_zero_point, B): B is int32 at x_scale * w_scale."""
    r.require_only(channels_last=0)
    window = read_conv_window(r, 3)
    quantizations = one_quantization(r, 1), weights_quantization(r, 4, 0)
    result = one_quantization(r, 6)
    bias = [r.label_input(8, accumulator_quantization(*quantizations))] if r.has(8) else []
    inputs = [r.label_input(0, quantizations[0]), r.label_input(3, quantizations[1]), *bias]
    emit_result(r, "Conv", inputs, r.tensor(0).dtype, 6, result, data_format="channels_first", **window)


def weights_quantization(r: Reading, scale: int, axis: int) -> Quantization:
    """The quantization of the weights before input `scale`: along `axis` if there is a list of scales as long as that."""
    data, shape = r.constant(scale), r.tensor(scale - 1).shape
    is_list = data is not None and data.ndim == 1 and (data.size > 1 or (shape is not None and shape[axis] == 1))
    return r.quantization(scale, scale + 1, axis if is_list else None)


def write_conv(op: Op, b: Builder) -> str:
    """Conv as QLinearConv."""
    reason = linear_reason(op, b, "QLinearConv") or bias_reason(op, b, "QLinearConv")
    if reason or b.tensor(op.outputs[0]).quantization is None:
        return reason or "QLinearConv has no real result"
    inputs = [*operand(b, op.inputs[0]), *operand(b, op.inputs[1]), *b.quantization(op.outputs[0])]
    return write_form(op, b, "QLinearConv", [*inputs, *stored_bias(op, b)], domain="", **conv_window(op))


WRITERS: Mapping[str, WriteForm] = {"Conv": write_conv}

READERS: Mapping[str, ReadFunction] = {"QLinearConv": read_qlinear_conv, f"{CONTRIB}.QLinearConv": read_qlinear_conv}
