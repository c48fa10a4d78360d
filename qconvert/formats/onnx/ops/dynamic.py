"""Operators of dynamic range: integer weights with float data, which are rounded to 8 bits when the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import scale_and_zero_point
from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder
from qconvert.formats.onnx.decomposed import turned_name
from qconvert.graph import Array, Op, Quantization
from qconvert.operators import is_dynamic, range_axes

__all__ = ["dynamic_data", "write_dynamic"]


def write_dynamic(op: Op, b: Builder, weights: Array, quantization: Quantization, bias: Sequence[str], **window: Any) -> None:
    """Data by DynamicQuantizeLinear, or rounded row by row, an integer product, both scales, and the bias.

    Args:
        op: a Gemm, MatMul or Conv with constant weights.
        b: what is written.
        weights: ..., I,O for a matrix product, O,I,spatial for a convolution.
        quantization: of these.
        bias: none, or the name of its float values.
        window: attributes of a convolution.
    """
    result, data, is_conv = op.outputs[0], op.inputs[0], op.kind == "Conv"
    kind = "ConvInteger" if is_conv else "MatMulInteger"
    along = (1, -1, *[1] * (weights.ndim - 2)) if is_conv else (-1,)
    turned = op.kind == "Gemm" or bool(op.attributes.get("trans_b"))
    kernel = b.const(weights, turned_name(op.inputs[1])) if turned else b.stored_value(op.inputs[1])
    point = _zero_point(b, quantization, weights, result)
    by_rows = op["arithmetic"] != "dynamic_tensor"
    if by_rows:
        stored, scale, data_point = _rows(op, b, weights)
    else:
        stored, scale, data_point = b.make_once(
            "DynamicQuantizeLinear", data, lambda: b.node("DynamicQuantizeLinear", [b.stored_value(data)], 3)
        )
    inputs = [stored, kernel, "" if by_rows else data_point, point]
    total = b.node(kind, inputs if point else inputs[: 2 if by_rows else 3], hint=f"{result}/sum", **window)[0]
    if by_rows:
        steps = weights.astype(np.int64) - scale_and_zero_point(quantization, weights.shape)[1].astype(np.int64)
        sums = steps.sum(axis=-2, keepdims=True).astype(np.int32)
        total = b.node("Sub", [total, b.node("Mul", [data_point, b.const(sums, f"{result}/sums")])[0]], hint=f"{result}/centred")[0]
    real = b.node("Cast", [total], hint=f"{result}/sum_real", to=ELEMENT_TYPES["float32"])[0]
    scales = quantization.scale.reshape(along) if quantization.axis is not None else quantization.scale.reshape(())
    steps_of = b.const(scales, f"{result}/weights/scale")
    if by_rows:  # in the order of XNNPACK's kernels
        value = b.node("Mul", [b.node("Mul", [real, scale])[0], steps_of], hint=f"{result}/scaled")[0]
    else:
        value = b.node("Mul", [real, b.node("Mul", [scale, steps_of], hint=f"{result}/scale")[0]], hint=f"{result}/scaled")[0]
    for name in bias:
        if is_conv:
            name = b.node("Reshape", [name, b.const(np.array(along, np.int64), f"{result}/bias_shape")], hint=f"{result}/bias")[0]
        value = b.node("Add", [value, name], hint=f"{result}/biased")[0]
    b.finish(op, value)


def dynamic_data(op: Op, b: Builder) -> str:
    """The float data of a convolution, rounded to the steps of their ranges where it does so when it runs."""
    if not is_dynamic(op):
        return b.real(op.inputs[0])
    weights = b.tensor(op.inputs[1]).shape or ()
    steps, scale, point = round_dynamic_data(op, b, [size for size in weights[2:] if isinstance(size, int)])
    return b.node("Mul", [b.node("Sub", [steps, point])[0], scale], hint=f"{op.outputs[0]}/rounded")[0]


def _zero_point(b: Builder, quantization: Quantization, weights: Array, result: str) -> str:
    points = quantization.zero_point
    if not points.any():
        return "" if weights.dtype == np.int8 else b.const(np.zeros((), weights.dtype), f"{result}/weights/zero_point")
    alike = bool((points == points[0]).all())
    return b.const((points[0] if alike else points).astype(weights.dtype), f"{result}/weights/zero_point")


def _rows(op: Op, b: Builder, weights: Array) -> tuple[str, str, str]:
    """Each row as uint8, its scale, and its zero point as int32."""
    steps, scale, point = round_dynamic_data(op, b, weights.shape[2:])
    shift = b.const(np.float32(128), f"{op.outputs[0]}/shift")
    moved = [b.node("Add", [name, shift])[0] for name in (steps, point)]
    stored, points = (b.node("Cast", [name], to=ELEMENT_TYPES[dtype])[0] for name, dtype in zip(moved, ("uint8", "int32"), strict=True))
    return stored, scale, points


def round_dynamic_data(op: Op, b: Builder, kernel: Sequence[int]) -> tuple[str, str, str]:
    """Data rounded as XNNPACK does (arithmetic/dynamic.py): integers from -128 to 127, scale and zero point, all as float32.

    PyTorch's reduced range is 0 to 127.
    """
    data, rank = b.stored_value(op.inputs[0]), b.tensor(op.inputs[0]).rank
    if rank is None:
        raise b.unsupported_error(op, "data of unknown rank", rule="unknown-rank")
    axes = [int(axis) for axis in range_axes(op, rank, kernel)]
    lowest, highest = (0, 127) if op["arithmetic"] == "dynamic_reduced" else (-128, 127)

    def value(number: float) -> str:
        return b.make_once("constant", str(number), lambda: [b.const(np.float32(number), f"value_{number:g}")])[0]

    def write_nodes() -> list[str]:
        low = b.node("Min", [_reduce(b, "ReduceMin", data, axes), value(0)])[0]
        high = b.node("Max", [_reduce(b, "ReduceMax", data, axes), value(0)])[0]
        span = b.node("Sub", [high, low])[0]
        empty = b.node("Equal", [span, value(0)])[0]
        factor = b.node("Where", [empty, value(1), b.node("Div", [value(highest - lowest), span])[0]])[0]
        below, above = (b.node("Mul", [end, factor])[0] for end in (low, high))
        errors = [b.node("Add", [value(end), b_end])[0] for end, b_end in ((lowest, below), (highest, above))]
        first = b.node("Greater", [b.node("Add", errors)[0], value(0)])[0]
        points = [b.node("Sub", [value(end), b_end])[0] for end, b_end in ((lowest, below), (highest, above))]
        exact = b.node("Clip", [b.node("Where", [first, *points])[0], value(lowest), value(highest)])[0]
        point = b.node("Round", [exact])[0]
        steps = b.node("Add", [b.node("Round", [b.node("Mul", [data, factor])[0]])[0], point])[0]
        return [b.node("Clip", [steps, value(lowest), value(highest)])[0], b.node("Div", [value(1), factor])[0], point]

    steps, scale, point = b.make_once(f"rounded {axes} {lowest}", op.inputs[0], write_nodes)
    return steps, scale, point


def _reduce(b: Builder, kind: str, data: str, axes: Sequence[int]) -> str:
    if b.opset < 18:
        return b.node(kind, [data], axes=list(axes), keepdims=1)[0]
    return b.node(kind, [data, b.const(np.array(axes, np.int64), f"{data}/axes")], keepdims=1)[0]
