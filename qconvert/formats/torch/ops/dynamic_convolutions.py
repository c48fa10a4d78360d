"""Convolutions of dynamic range: float data are quantized at each run, and so is the result, with the quantization of the data.

Source: ATen/native/quantized/cpu/qconv_dynamic.cpp. It passes the scale and zero point of the data to the quantized convolution as those
of the result, and dequantizes the result. Values outside of the data's range are clipped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.formats.torch.ops.layers import bias_of, kernel_of, require_real, rounding_of
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]


def read_convolution(spatial: int, transposed: bool) -> Operator:
    """quantized::conv2d_dynamic, conv_transpose2d_dynamic and their kin."""

    def read(c: Call) -> Ref:
        packed, data = c.packed_parameters("packed_weight"), c.operand("qx")
        require_real(c, data.name)
        weights, sizes = kernel_of(c, packed, spatial)
        if transposed:
            sizes["output_padding"] = packed.output_padding[len(packed.output_padding) - spatial :]
        inputs = [data.name, weights, *bias_of(c, packed)]
        kind = "ConvTranspose" if transposed else "Conv"
        result = c.emit(kind, inputs, quantization=None, hint="unrounded", arithmetic=rounding_of(c), **sizes)
        return _quantize_dynamically(c, data.name, result.name)

    return Operator("T qx, o packed_weight, b reduce_range=False", read)


def _quantize_dynamically(c: Call, data: str, result: str) -> Ref:
    """Float values rounded to the quantization of the data's range, decomposed."""

    def add_number(value: float) -> str:
        return c.const(np.float32(value), "number")

    def emit_float(kind: str, *names: str, hint: str = "part") -> str:
        return c.emit(kind, list(names), dtype="float32", quantization=None, hint=hint).name

    axes = c.list64(list(range(c.rank("qx"))), "axes")
    low, high = (c.emit(f"Reduce{kind}", [data, axes], quantization=None, hint=kind.lower(), keepdims=0).name for kind in ("Min", "Max"))
    low, high = emit_float("Min", low, add_number(0)), emit_float("Max", high, add_number(0))
    span = emit_float("Div", emit_float("Sub", high, low), add_number(127 if c["reduce_range"] else 255))
    empty = c.emit("Equal", [span, add_number(0)], dtype="bool", quantization=None, hint="empty").name
    scale = emit_float("Where", empty, add_number(0.1), span, hint="scale")
    point = emit_float("Round", emit_float("Div", emit_float("Neg", low), scale), hint="zero_point")
    steps = emit_float("Add", emit_float("Round", emit_float("Div", result, scale)), point)
    steps = emit_float("Clip", steps, add_number(0), add_number(255), hint="steps")
    return c.emit("Mul", [emit_float("Sub", steps, point), scale], dtype="float32", quantization=None)


OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    **{f"quantized::conv{n}d_dynamic": read_convolution(n, transposed=False) for n in (1, 2, 3)},
    **{f"quantized::conv_transpose{n}d_dynamic": read_convolution(n, transposed=True) for n in (1, 2, 3)},
}
