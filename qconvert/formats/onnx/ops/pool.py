"""AveragePool, MaxPool and their global forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder, WriteFunction
from qconvert.formats.onnx.ops.elementwise import read_same_named, write_same_named
from qconvert.formats.onnx.reading import NotCoveredError, ReadFunction, Reading
from qconvert.graph import Op, Quantization
from qconvert.graph.activations import activation_bounds, clip_range
from qconvert.kernels.onnxruntime import covers_all

__all__ = ["READERS", "WRITERS", "may_tie"]


def read_average_pool(r: Reading) -> None:
    """AveragePool."""
    if any(value != 1 for value in r.attribute("dilations", ())):
        raise NotCoveredError("dilations")
    r.emit("AveragePool", count_include_pad=int(r.attribute("count_include_pad", 0)), **_read_attributes(r))


def write_average_pool(op: Op, b: Builder) -> None:
    """AveragePool, padding not counted. Where averages can be ties, the source's way of rounding them is kept (_tied_average)."""
    if may_tie(op, b):
        _tied_average(op, b)
        return
    fault = b.kernel_fault(op)
    if fault and covers_all(b.graph, op):
        _write_mean(op, b)
        return
    value = b.node("AveragePool", [b.float_value(op.inputs[0])], hint=f"{op.outputs[0]}/real_result", **_attributes(op))
    b.finish(op, b.node("Max", value, hint=f"{op.outputs[0]}/apart")[0] if fault else value[0])  # a Max of one is fused to nothing


def may_tie(op: Op, b: Builder) -> bool:
    """An average of n integers is a tie only if n is even. Padding makes n vary; such a pool stays an AveragePool."""
    data, result = b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    same = data.is_quantized and data.shares_quantization(result) and not op["activation"]
    unpadded = op["auto_pad"] == "NOTSET" and not any(op["pads"]) and not op["ceil_mode"]
    known = data.shape is not None and isinstance(data.shape[1], int)
    return (
        b.is_exact
        and op["arithmetic"] in ("ties_up", "ties_away")
        and same
        and unpadded
        and known
        and math.prod(op["kernel_shape"]) % 2 == 0
    )


def _tied_average(op: Op, b: Builder) -> None:
    """The average as a depthwise Conv with weights 2 of scale 1/(2n) and a bias of 1 or -1, which decides ties alone.

    The sum is doubled and shifted by one: a tie is then half a step of 1/n off it, and all else stays on its side. The result is exact.
    Ties away from the stored zero of a signed type are ties up above it and ties down below it.
    """
    tensor = b.tensor(op.outputs[0])
    if op["arithmetic"] == "ties_up":
        _averaging_conv(op, b, 1, tensor.name)
        return
    up = _averaging_conv(op, b, 1, b.name(f"{tensor.name}/ties_up"))
    down = _averaging_conv(op, b, -1, b.name(f"{tensor.name}/ties_down"))
    zero = b.const(np.array(128 if tensor.dtype == "uint8" else 0, np.int32), f"{tensor.name}/stored_zero")
    wide = b.node("Cast", [up], hint=f"{tensor.name}/ties_up_int32", to=ELEMENT_TYPES["int32"])
    above = b.node("Greater", [wide[0], zero], hint=f"{tensor.name}/above_stored_zero")
    if tensor.dtype == "uint8":  # onnxruntime has Where for uint8, not for int8
        b.node("Where", [above[0], up, down], [tensor.name])
        return
    lower = b.node("Cast", [down], hint=f"{tensor.name}/ties_down_int32", to=ELEMENT_TYPES["int32"])
    chosen = b.node("Where", [above[0], wide[0], lower[0]], hint=f"{tensor.name}/int32")
    b.cast(chosen[0], tensor.dtype, tensor.name)


def _averaging_conv(op: Op, b: Builder, bias: int, output: str) -> str:
    data, result = b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    assert data.quantization is not None and data.shape is not None
    channels, kernel = int(data.shape[1]), list(op["kernel_shape"])
    scale = np.float32(1 / (2 * math.prod(kernel)))
    weights = b.const(np.full((channels, 1, *kernel), 2, np.int8), f"{output}/weights")
    real_weights = b.dequantize(weights, "int8", Quantization.per_tensor(float(scale)))
    offset = b.const(np.full(channels, bias, np.int32), f"{output}/tie_bias")
    real_offset = b.dequantize(offset, "int32", Quantization.per_tensor(float(data.quantization.scale[0] * scale)))
    operands = [b.float_value(op.inputs[0]), real_weights, real_offset]
    value = b.node("Conv", operands, hint=f"{output}/real_result", kernel_shape=kernel, strides=list(op["strides"]), group=channels)
    b.quantize(value[0], result, output)
    return output


def read_max_pool(r: Reading) -> None:
    """MaxPool without indices."""
    r.require_only(storage_order=0)
    if len(r.outputs) > 1 and r.outputs[1]:
        raise NotCoveredError("indices")
    dilations = r.attribute("dilations", ())
    r.emit("MaxPool", outputs=r.outputs[:1], dilations=dilations if any(v != 1 for v in dilations) else (), **_read_attributes(r))


def write_max_pool(op: Op, b: Builder) -> None:
    """MaxPool on the stored integers where ONNX has it (int8 and uint8 from opset 12), else in float."""
    tensor = b.tensor(op.outputs[0])
    if tensor.dtype not in ("int8", "uint8"):
        b.compute(op, **_attributes(op))
        return
    pooled = b.node("MaxPool", [b.stored_value(op.inputs[0])], hint=f"{tensor.name}/unclipped", **_attributes(op))[0]
    if op["activation"]:
        b.clip_stored(pooled, tensor, *clip_range(tensor, activation_bounds(op)))
    else:
        b.rename(pooled, tensor.name)


def write_global_average_pool(op: Op, b: Builder) -> None:
    """GlobalAveragePool of float values."""
    if b.kernel_fault(op):
        _write_mean(op, b)
        return
    b.compute(op)


def _write_mean(op: Op, b: Builder) -> None:
    """An average of all positions as a ReduceMean, for which onnxruntime has no integer kernel that would fail."""
    axes: list[int] = [*range(2, b.tensor(op.inputs[0]).rank or 2)]
    value, hint = b.float_value(op.inputs[0]), f"{op.outputs[0]}/real_result"
    if b.opset < 18:
        b.finish(op, b.node("ReduceMean", [value], hint=hint, axes=axes)[0])
    else:
        b.finish(op, b.node("ReduceMean", [value, b.const(np.array(axes, np.int64), f"{hint}/axes")], hint=hint)[0])


def _read_attributes(r: Reading) -> dict[str, Any]:
    kernel, auto = r.attribute("kernel_shape"), r.attribute("auto_pad", "NOTSET")
    if kernel is None:
        raise r.invalid("lacks the attribute 'kernel_shape'", rule="attribute-missing")
    none = (0,) * 2 * len(kernel)
    return {
        "kernel_shape": kernel,
        "strides": r.attribute("strides", (1,) * len(kernel)),
        "pads": r.attribute("pads", none) if auto == "NOTSET" else none,
        "auto_pad": auto,
        "ceil_mode": int(r.attribute("ceil_mode", 0)),
        "data_format": "channels_first",
    }


def _attributes(op: Op) -> dict[str, Any]:
    auto = op["auto_pad"]
    return {
        "kernel_shape": list(op["kernel_shape"]),
        "strides": list(op["strides"]),
        "pads": list(op["pads"]) if auto == "NOTSET" else None,
        "auto_pad": None if auto == "NOTSET" else auto,
        "ceil_mode": int(op["ceil_mode"]) or None,
        "count_include_pad": op.attributes.get("count_include_pad") or None,
        "dilations": op.attributes.get("dilations") or None,
    }


WRITERS: dict[str, WriteFunction] = {
    "AveragePool": write_average_pool,
    "MaxPool": write_max_pool,
    "GlobalAveragePool": write_global_average_pool,
    "GlobalMaxPool": write_same_named,
}

READERS: dict[str, ReadFunction] = {
    "AveragePool": read_average_pool,
    "MaxPool": read_max_pool,
    "GlobalAveragePool": read_same_named,
    "GlobalMaxPool": read_same_named,
}
