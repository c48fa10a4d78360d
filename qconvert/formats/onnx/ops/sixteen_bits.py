"""Arithmetic of 16-bit data with the integers of TFLite's own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic import PAIR_BITS, effective_scale, pair_factors, quantize_multiplier, short_multipliers
from qconvert.formats.onnx.builder import Builder
from qconvert.graph import Op, integer_range
from qconvert.graph.activations import activation_bounds, clip_range
from qconvert.operators import kind_of

__all__ = ["AWAY", "write_pair_of_16_bits", "write_sixteen_bits"]

#: What makes multiples of 2^-31 up to 2^31 no ties, and brings no other number to one: ties go away from zero.
AWAY = 1 + 2.0**-40


def write_pair_of_16_bits(op: Op, b: Builder) -> None:
    """Add, Sub or Mul as TFLite's kernel rounds (arithmetic/sixteen_bits.py), in float64.

    Operands have 16 bits and multipliers 31, which is exact. The product of a sum with the last multiplier is not: it is cut off below
    2^-22 of a step of the first of two roundings, which changes fewer than one element in 2^36.

    Args:
        op: an operator that kernels.litert.forms.pair() takes.
        b: what is written.
    """
    result = b.tensor(op.outputs[0])
    first, second, output = (b.tensor(name).quantization for name in (*op.inputs, *op.outputs))
    assert first is not None and second is not None and output is not None

    def by(value: str, factor: float) -> str:
        return value if factor == 1 else b.node("Mul", [value, b.const(np.float64(factor), f"{result.name}/factor")])[0]

    def round_half_up(value: str) -> str:
        return b.node("Floor", [b.node("Add", [value, b.const(np.float64(0.5), "half")])[0]])[0]

    def rescale(value: str, factor: float, bits: int, once: bool) -> str:
        multiplier, shift = quantize_multiplier(factor)
        if int(multiplier) == 2**30 and bits + shift > 0:
            return by(value, 2.0 ** (bits + int(shift) - 1))
        if once or not shift:
            return round_half_up(by(value, float(multiplier) * 2.0 ** (bits + int(shift) - 31)))
        return b.node("Round", [by(round_half_up(by(value, float(multiplier) * 2.0 ** (bits - 31))), 2.0 ** int(shift) * AWAY)])[0]

    *factors, last = pair_factors(op.kind, (first, second), output)
    operands, sign = [], kind_of(op).sum_sign
    once = sign > 0 and len({b.tensor(name).shape for name in op.inputs}) == 1
    for name, factor in zip(op.inputs, factors, strict=True):
        wide = b.cast(b.stored_value(name), "float64")
        operands.append(rescale(wide, factor, PAIR_BITS, once) if sign else wide)
    steps = rescale(b.node(op.kind, operands, hint=f"{result.name}/total")[0], last, 0, False)
    limits = [b.const(np.float64(value), f"{result.name}/limit") for value in _limits(op, b)]
    b.cast(b.node("Clip", [steps, *limits])[0], result.dtype, result.name)


def write_sixteen_bits(op: Op, b: Builder, **window: Any) -> None:
    """(sum * multiplier + half) >> shift, the sum being exact.

    The data are 256 * high + low with both from -128 to 128, so that sums of either are exact in float32, for which onnxruntime has fast
    convolutions; both together, and their product with a multiplier of 15 bits, are exact in float64.

    Args:
        op: a Conv that kernels.litert.forms.convolution() takes.
        b: what is written.
        window: attributes of a convolution.
    """
    result = b.tensor(op.outputs[0])
    data, weights, output = (b.tensor(name).quantization for name in (*op.inputs[:2], *op.outputs))
    assert data is not None and weights is not None and output is not None

    def to(value: str, dtype: str, hint: str) -> str:
        return b.cast(value, dtype, hint=f"{hint}/{dtype}")

    def parts() -> list[str]:
        whole = to(b.stored_value(op.inputs[0]), "float32", op.inputs[0])
        high = b.node("Round", [b.node("Mul", [whole, b.const(np.float32(1 / 256), "part")])[0]], hint=f"{op.inputs[0]}/high")[0]
        low = b.node("Sub", [whole, b.node("Mul", [high, b.const(np.float32(256), "whole")])[0]], hint=f"{op.inputs[0]}/low")[0]
        return [high, low]

    kernel = to(b.stored_value(op.inputs[1]), "float32", op.inputs[1])
    high, low = (
        b.node("Conv", [part, kernel], hint=f"{result.name}/sum", **window)[0] for part in b.make_once("parts", op.inputs[0], parts)
    )
    wide = [to(value, "float64", value) for value in (high, low)]
    total = b.node("Add", [b.node("Mul", [wide[0], b.const(np.float64(256), "whole")])[0], wide[1]], hint=f"{result.name}/sum")[0]
    along = (-1, *[1] * ((b.tensor(op.inputs[1]).rank or 3) - 2))
    axes = b.const(np.arange(1, len(along)), f"{result.name}/axes")
    bias = b.node("Unsqueeze", [to(b.stored_value(op.inputs[2]), "float64", op.inputs[2]), axes], hint=f"{op.inputs[2]}/channels")[0]
    multiplier, bits = short_multipliers(effective_scale(data.scale, weights.scale, output.scale))
    factor = (multiplier * 2.0**-bits).reshape(along if multiplier.size > 1 else ())
    scaled = b.node("Mul", [b.node("Add", [total, bias])[0], b.const(factor, f"{result.name}/factor")], hint=f"{result.name}/scaled")[0]
    whole = b.node("Floor", [b.node("Add", [scaled, b.const(np.float64(0.5), "half")])[0]], hint=f"{result.name}/steps")[0]
    limits = [b.const(np.float64(value), f"{result.name}/limit") for value in _limits(op, b)]
    b.cast(b.node("Clip", [whole, *limits])[0], result.dtype, result.name)


def _limits(op: Op, b: Builder) -> tuple[int, int]:
    tensor, bounds = b.tensor(op.outputs[0]), activation_bounds(op)
    return integer_range(tensor.dtype) if bounds == (None, None) else clip_range(tensor, bounds)
