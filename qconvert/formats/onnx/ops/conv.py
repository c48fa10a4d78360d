"""Conv and ConvTranspose."""

from __future__ import annotations

from typing import Any

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.graph import Op, Quantization

__all__ = ["WRITERS", "real_bias", "require_channels_first"]


def write_conv(op: Op, b: Builder) -> None:
    """Conv: DequantizeLinear of data, weights and bias, Conv, QuantizeLinear: the pattern of QLinearConv."""
    require_channels_first(op, b)
    operands = [b.real(op.inputs[0]), b.real(op.inputs[1]), *real_bias(op, b)]
    b.finish(op, b.node("Conv", operands, hint=f"{op.outputs[0]}/real_result", **window_attributes(op))[0])


def write_conv_transpose(op: Op, b: Builder) -> None:
    """ConvTranspose: ONNX has its weights as I,O,spatial."""
    require_channels_first(op, b)
    name = op.inputs[1]
    weights = b.tensor(name)
    if weights.data is None:
        raise b.unsupported(op, "weights that are computed at run time")
    group = int(op["group"])
    if group != 1:
        raise b.unsupported(op, "groups")
    swapped = b.const(weights.data.swapaxes(0, 1), f"{name}/IOHW")
    if weights.quantization is not None:
        quantization: Quantization = weights.quantization
        swapped = b.dequantize(swapped, weights.dtype, quantization, None if quantization.axis is None else 1)
    operands = [b.real(op.inputs[0]), swapped, *real_bias(op, b)]
    attributes = {**window_attributes(op), "output_padding": list(op["output_padding"])}
    b.finish(op, b.node("ConvTranspose", operands, hint=f"{op.outputs[0]}/real_result", **attributes)[0])


def real_bias(op: Op, b: Builder) -> list[str]:
    """The bias behind its own DequantizeLinear. ONNX has none for int64: such a bias becomes int32, or float if it is too large."""
    if len(op.inputs) < 3 or not op.inputs[2]:
        return []
    bias = b.tensor(op.inputs[2])
    if bias.dtype != "int64" or bias.data is None or bias.quantization is None:
        return [b.real(bias.name)]
    if abs(bias.data).max(initial=0) < 2**31:
        narrow = b.const(bias.data.astype("int32"), f"{bias.name}/int32")
        return [b.dequantize(narrow, "int32", bias.quantization)]
    return [b.const((bias.data * bias.quantization.scale.astype("float64")).astype("float32"), f"{bias.name}/float32")]


def require_channels_first(op: Op, b: Builder) -> None:
    """ONNX's spatial operators know one layout; the layout pass has run before, or the target is not ONNX."""
    if op["data_format"] != "channels_first":
        raise b.unsupported(op, "channels_last data (the layout pass has not run)")


def window_attributes(op: Op) -> dict[str, Any]:
    """Attributes that Conv and ConvTranspose share."""
    auto = op["auto_pad"]
    return {
        "strides": list(op["strides"]),
        "dilations": list(op["dilations"]),
        "group": int(op["group"]),
        "pads": list(op["pads"]) if auto == "NOTSET" else None,
        "auto_pad": None if auto == "NOTSET" else auto,
    }


WRITERS: dict[str, WriteFunction] = {"Conv": write_conv, "ConvTranspose": write_conv_transpose}
