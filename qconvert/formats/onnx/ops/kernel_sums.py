"""Means and sums over axes with the integers of LiteRT's kernels (arithmetic/means.py): sums of stored integers, then few elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.arithmetic import tflite_mean_multiplier, xnnpack_reduction
from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder
from qconvert.formats.onnx.ops.sixteen_bits import AWAY
from qconvert.graph import Array, Op, Quantization, integer_range
from qconvert.operators import reduced_count

__all__ = ["write_as_tflite", "write_as_xnnpack"]

#: The name of a value -> that of its sum over the operator's axes.
Summed = Callable[[str], str]
_HALF_BITS = 16


def write_as_xnnpack(op: Op, b: Builder, summed: Summed) -> None:
    """XNNPACK's arithmetic in float32, in which the sums are exact.

    Args:
        op: a reduction of 8-bit data that kernels.litert.forms.reduction() takes.
        b: what is written.
        summed: writes the sum.
    """
    result, (given, output, count) = b.tensor(op.outputs[0]), _quantizations(op, b)
    low = integer_range("int8" if op["arithmetic"] == "xnnpack_qs8" else "uint8")[0]
    shift = integer_range(result.dtype)[0] - low  # from the kernel's type to that which is stored
    factor, offset = xnnpack_reduction(given.shifted(-shift), output.shifted(-shift), count, op.kind == "ReduceMean")
    total = summed(_cast(b, b.stored(op.inputs[0]), "float32"))
    if shift:
        total = b.node("Add", [total, b.const(np.float32(-shift * count), f"{result.name}/shift")])[0]
    scaled = b.node("Mul", [total, b.const(factor, f"{result.name}/factor")])[0]
    steps = b.node("Round", [b.node("Add", [scaled, b.const(offset, f"{result.name}/offset")])[0]])[0]
    if shift:
        steps = b.node("Add", [steps, b.const(np.float32(shift), f"{result.name}/shift")])[0]
    _stored(op, b, steps, np.float32)


def write_as_tflite(op: Op, b: Builder, summed: Summed) -> None:
    """TFLite's arithmetic of 16-bit data in float64: the halves of the multiplier by themselves, so that no product has more than 53 bits.

    Args:
        op, b, summed: as in write_as_xnnpack().
    """
    result, (given, output, count) = b.tensor(op.outputs[0]), _quantizations(op, b)
    multiplier, shift = tflite_mean_multiplier(given, output, count)
    total = _cast(b, summed(_cast(b, b.stored(op.inputs[0]), "int32")), "float64")

    def by(value: str, factor: float) -> str:
        return b.node("Mul", [value, b.const(np.float64(factor), f"{result.name}/factor")])[0]

    if shift > 0:
        total = by(total, 2.0**shift)
    high, low = divmod(multiplier, 2**_HALF_BITS)
    parts = [by(total, high), b.node("Floor", [by(total, low * 2.0**-_HALF_BITS)])[0]]
    once = by(b.node("Add", parts)[0], 2.0 ** (_HALF_BITS - 31))
    steps = b.node("Floor", [b.node("Add", [once, b.const(np.float64(0.5), "half")])[0]])[0]
    _stored(op, b, b.node("Round", [by(steps, 2.0**shift * AWAY)])[0] if shift < 0 else steps, np.float64)


def _quantizations(op: Op, b: Builder) -> tuple[Quantization, Quantization, int]:
    given, output = (b.tensor(name).quantization for name in (op.inputs[0], op.outputs[0]))
    count = reduced_count(b.graph, op)
    assert given is not None and output is not None and count is not None
    return given, output, count


def _cast(b: Builder, value: str, dtype: str) -> str:
    return b.node("Cast", [value], hint=f"{value}/{dtype}", to=ELEMENT_TYPES[dtype])[0]


def _stored(op: Op, b: Builder, steps: str, real: type[np.floating]) -> None:
    """Whole numbers as the result stores them."""
    result = b.tensor(op.outputs[0])
    limits: list[Array] = [np.asarray(value, real) for value in integer_range(result.dtype)]
    clipped = b.node("Clip", [steps, *(b.const(value, f"{result.name}/limit") for value in limits)])[0]
    b.node("Cast", [clipped], [result.name], to=ELEMENT_TYPES[result.dtype])
