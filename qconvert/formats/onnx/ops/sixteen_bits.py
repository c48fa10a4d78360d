"""Arithmetic of 16-bit data with the integers of TFLite's own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic import PAIR_BITS, effective_scale, pair_factors, quantize_multiplier, short_multipliers
from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.values import Value, place_of
from qconvert.graph import Op, integer_range
from qconvert.graph.activations import activation_bounds, clip_range
from qconvert.operators import kind_of

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
    at = place_of(op, b)
    first, second, output = (b.tensor(name).quantization for name in op.names)
    assert first is not None and second is not None and output is not None

    def by(value: Value, factor: float) -> Value:
        return value if factor == 1 else value * factor

    def rescale(value: Value, factor: float, bits: int, once: bool) -> Value:
        multiplier, shift = map(int, quantize_multiplier(factor))
        if multiplier == 2**30 and bits + shift > 0:
            return by(value, 2.0 ** (bits + shift - 1))
        if once or not shift:
            return by(value, multiplier * 2.0 ** (bits + shift - 31)).round_up()
        return by(by(value, multiplier * 2.0 ** (bits - 31)).round_up(), 2.0**shift * AWAY).round()

    sign = kind_of(op).sum_sign
    *factors, last = pair_factors(sign, (first, second), output)
    operands = [at.stored(name, "float64") for name in op.inputs]
    if sign:
        once = sign > 0 and len({b.tensor(name).shape for name in op.inputs}) == 1
        operands = [rescale(value, factor, PAIR_BITS, once) for value, factor in zip(operands, factors, strict=True)]
    steps = rescale(at.node(op.kind, *operands), last, 0, False)
    steps.clip(*_limits(op, b)).finish(op.outputs[0])


def write_sixteen_bits(op: Op, b: Builder, **window: Any) -> None:
    """(sum * multiplier + half) >> shift, the sum being exact.

    The data are 256 * high + low with both from -128 to 128, so that sums of either are exact in float32, for which onnxruntime has fast
    convolutions; both together, and their product with a multiplier of 15 bits, are exact in float64.

    Args:
        op: a Conv that kernels.litert.forms.convolution() takes.
        b: what is written.
        window: attributes of a convolution.
    """
    at = place_of(op, b)
    data, weights, output = (b.tensor(name).quantization for name in (*op.inputs[:2], *op.outputs))
    assert data is not None and weights is not None and output is not None

    def parts() -> list[str]:
        whole = at.stored(op.inputs[0], "float32")
        high = (whole * (1 / 256)).round()
        return [high.name, (whole - high * 256).name]

    kernel, names = at.stored(op.inputs[1], "float32"), b.make_once("parts", op.inputs[0], parts)
    high, low = (at.value(name, "float32").then("Conv", kernel, **window).cast("float64") for name in names)
    along = (-1, *[1] * ((b.tensor(op.inputs[1]).rank or 3) - 2))
    bias = at.stored(op.inputs[2], "float64").then("Unsqueeze", np.arange(1, len(along)))
    multiplier, bits = short_multipliers(effective_scale(data.scale, weights.scale, output.scale))
    factor = (multiplier * 2.0**-bits).reshape(along if multiplier.size > 1 else ())
    steps = ((high * 256 + low + bias) * factor).round_up()
    steps.clip(*_limits(op, b)).finish(op.outputs[0])


def _limits(op: Op, b: Builder) -> tuple[int, int]:
    tensor, bounds = b.tensor(op.outputs[0]), activation_bounds(op)
    return integer_range(tensor.dtype) if bounds == (None, None) else clip_range(tensor, bounds)
