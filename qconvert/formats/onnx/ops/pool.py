"""AveragePool, MaxPool and their global forms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import bit_width
from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.ops.conv import read_window, window
from qconvert.formats.onnx.ops.quantize import dequantize_with_scale
from qconvert.formats.onnx.ops.same_named import write_named
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.values import place_of
from qconvert.graph import Op, Quantization, integer_range
from qconvert.graph.activations import activation_bounds, clip_range
from qconvert.kernels.onnxruntime import covers_all


def read_average_pool(r: Reading) -> None:
    """AveragePool."""
    if any(value != 1 for value in r.attribute("dilations", ())):
        raise NotCoveredError("dilations")
    r.emit("AveragePool", count_include_pad=r.attribute("count_include_pad", 0), **read_pool_window(r))


def write_average_pool(op: Op, b: Builder) -> None:
    """AveragePool, padding not counted. Where averages can be ties, the source's way of rounding them is kept (_tied_average)."""
    if may_tie(op, b):
        _tied_average(op, b)
        return
    fault = b.kernel_fault(op)
    if fault and covers_all(b.graph, op):
        _write_mean(op, b)
        return
    value = b.node("AveragePool", [b.float_value(op.inputs[0])], hint=f"{op.outputs[0]}/real_result", **pool_window(op))
    b.finish(op, b.keep_apart(value[0], op.outputs[0]) if fault else value[0])


def _largest_window(dtype: str) -> int:
    return 1 << (22 - bit_width(dtype))


def may_tie(op: Op, b: Builder) -> bool:
    """An average of n integers is a tie only if n is even. Padding makes n vary; such a pool stays an AveragePool."""
    data, result = b.operand(op), b.result(op)
    same = data.is_quantized and data.shares_quantization(result) and not op["activation"]
    unpadded = op["auto_pad"] == "NOTSET" and not any(op["pads"]) and not op["ceil_mode"]
    known = data.shape is not None and isinstance(data.shape[1], int)
    count = math.prod(op["kernel_shape"])
    return (
        b.is_exact
        and op["arithmetic"] in ("ties_up", "ties_away")
        and same
        and bit_width(data.dtype) <= 16
        and unpadded
        and known
        and count % 2 == 0
        and count <= _largest_window(data.dtype)
    )


def _tied_average(op: Op, b: Builder) -> None:
    """The average as a depthwise Conv that sums stored integers, and a QuantizeLinear that divides the sum by slightly less than their
    number: ties are then away from the zero point, and other averages, which are 1/n off a tie at least, stay on their side.

    Ties up are those away from the lowest integer. All values are whole, so that the division alone rounds.
    """
    data, name = b.operand(op), op.outputs[0]
    lowest, highest = integer_range(data.dtype)
    point = lowest if op["arithmetic"] == "ties_up" else (lowest + highest + 1) // 2
    assert data.shape is not None
    channels, kernel = int(data.shape[1]), list(op["kernel_shape"])
    ones = b.const(np.ones((channels, 1, *kernel), np.int8), f"{name}/weights")
    operands = [dequantize_with_scale(b, data, 1.0, point), b.dequantize(ones, "int8", Quantization.per_tensor(1.0))]
    total = b.node("Conv", operands, hint=f"{name}/real_result", kernel_shape=kernel, strides=list(op["strides"]), group=channels)
    # By so little are averages of integers of so many bits moved by less than half of 1/n, and ties by more than the two roundings of
    # float32 do, up to n = _largest_window().
    divisor = Quantization.per_tensor(math.prod(kernel) - 2.0 ** -(bit_width(data.dtype) + 1), point)
    b.quantize(total[0], replace(data, quantization=divisor), f"{name}/whole")
    b.cast(f"{name}/whole", data.dtype, name)


def read_max_pool(r: Reading) -> None:
    """MaxPool without indices."""
    r.require_only(storage_order=0)
    if len(r.outputs) > 1 and r.outputs[1]:
        raise NotCoveredError("indices")
    dilations = r.attribute("dilations", ())
    r.emit("MaxPool", outputs=r.outputs[:1], dilations=dilations if any(v != 1 for v in dilations) else (), **read_pool_window(r))


def write_max_pool(op: Op, b: Builder) -> None:
    """MaxPool on the stored integers where ONNX has it (int8 and uint8 from opset 12), else in float."""
    tensor = b.result(op)
    if tensor.dtype not in ("int8", "uint8"):
        b.compute(op, **pool_window(op))
        return
    pooled = b.node("MaxPool", [b.stored_value(op.inputs[0])], hint=f"{tensor.name}/unclipped", **pool_window(op))[0]
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
    value = place_of(op, b).floats(op.inputs[0])
    b.finish(op, value.reduce("ReduceMean", *range(2, b.operand(op).rank or 2)).name)


def read_pool_window(r: Reading) -> dict[str, Any]:
    """The attributes that pools share."""
    kernel = r.attribute("kernel_shape")
    return {
        "kernel_shape": kernel,
        **read_window(r, len(kernel)),
        "ceil_mode": r.attribute("ceil_mode", 0),
        "data_format": "channels_first",
    }


def pool_window(op: Op) -> dict[str, Any]:
    """The attributes of a pool's node."""
    others = ("ceil_mode", "count_include_pad", "dilations")
    return {"kernel_shape": op["kernel_shape"], **window(op), **{name: op.attributes.get(name) or None for name in others}}


WRITERS: Writers = {
    "AveragePool": write_average_pool,
    "MaxPool": write_max_pool,
    "GlobalAveragePool": write_global_average_pool,
    "GlobalMaxPool": write_named,
}

READERS: Readers = {
    "AveragePool": read_average_pool,
    "MaxPool": read_max_pool,
}
