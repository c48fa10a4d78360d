"""Arithmetic on integers as TFLite's kernels have it: rescaling by fixed-point multipliers and layer normalization of recurrent ones, and
that of 16-bit data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic import (
    PAIR_BITS,
    IntegerGate,
    IntegerLstm,
    effective_scale,
    pair_factors,
    quantize_multiplier,
    rounds_pairs_once,
    short_multipliers,
)
from qconvert.arithmetic.fixed_point_functions import HALF_ROOT, ITERATIONS, LARGEST, ONE, THREE_HALVES
from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.values import Place, Value, axes, place_of
from qconvert.graph import Array, Op, integer_range
from qconvert.graph.activations import activation_bounds, clip_range
from qconvert.operators import kind_of

#: Rounds ties of a number of 32 bits away from zero, and changes no other rounding.
AWAY = 1 + 2.0**-32
#: Whole numbers up to which float64 holds all.
_EXACT = 2.0**53
#: Bits of a product of two int16, and of float64's whole numbers.
_PAIR_BITS, _EXACT_BITS = 30, 53


class Rescale(NamedTuple):
    """x * multiplier, rounded twice, as MultiplyByQuantizedMultiplier does: one factor, or one for each column.

    Attributes:
        multipliers: int64, with the shift to the left in them; their products are divided by 2**31.
        right: the shift to the right after that.
        in_floats: whether float64 holds every product; else int64 does.
    """

    multipliers: Array
    right: Array
    in_floats: bool

    @classmethod
    def of(cls, factors: Any, bound: Any, op: Op, b: Builder, what: str = "sums") -> Rescale:
        """The steps for real multipliers of integers up to `bound`.

        Raises:
            UnsupportedError: a shifted integer may leave the int32 of the operator's kernel; `what` says of what it is.
        """
        found, shifts = quantize_multiplier(np.asarray(factors, np.float64))
        left, multipliers = np.maximum(shifts, 0), found.astype(np.int64)
        if (np.asarray(bound, np.float64) * 2.0**left > 2.0**31).any():
            raise b.unsupported_error(op, f"{what} that may overflow in its kernel", rule="may-overflow")
        fits = (np.asarray(bound, np.float64) * _odd_part(multipliers) < _EXACT).all()
        return cls(multipliers << left, np.maximum(-shifts, 0), bool(fits))

    @classmethod
    def of_pair(cls, factor: float) -> Rescale:
        """The steps for products of two int16, times a factor below 1: of 30 bits, next to 24 of the multiplier. Those that float64 would
        round are few, and mostly harmless."""
        multipliers, shifts = quantize_multiplier(np.float64(factor))
        return cls(multipliers.astype(np.int64), np.maximum(-shifts, 0), not _has_wrong_tie(int(multipliers)))

    def emit(self, value: Value) -> Value:
        """The nodes after a float64 value; the result is float64 too."""
        steps = self._first(value)
        # After no shift the factor is 1: it would move whole numbers that are large.
        second = np.where(self.right > 0, 2.0**-self.right * AWAY, 1.0)
        return (steps * second).round() if self.right.any() else steps

    def emit_up(self, value: Value) -> Value:
        """The same where the second rounding takes ties up, as ruy does."""
        steps = self._first(value)
        return (steps * np.asarray(2.0**-self.right)).round_up() if self.right.any() else steps

    def _first(self, value: Value) -> Value:
        """The first rounding, halves up."""
        if self.in_floats:
            return (value * np.asarray(self.multipliers * 2.0**-31)).round_up()
        product = value.cast("int64") * self.multipliers
        # Div of integers truncates: what it divides is made positive first.
        return ((product + (2**62 + 2**30)) / 2**31 - 2**31).cast("float64")


def _odd_part(multipliers: Array) -> Array:
    """The bits that count."""
    return np.asarray(multipliers // np.maximum(1, multipliers & -multipliers))


def _has_wrong_tie(multiplier: int) -> bool:
    """Whether float64 rounds a product of the multiplier and two int16, which has up to 61 bits, from below a half to it."""
    if not multiplier:  # of a factor below 2**-32
        return False
    odd = int(_odd_part(np.array(multiplier)))
    bits = 31 - (multiplier // odd).bit_length() + 1
    if odd.bit_length() + _PAIR_BITS <= _EXACT_BITS:
        return False
    just_below = (2 ** (bits - 1) - 1) * pow(odd, -1, 2**bits) % 2**bits
    values = np.arange(just_below - 2**_PAIR_BITS // 2**bits * 2**bits, 2**_PAIR_BITS, 2**bits, dtype=np.int64)
    found = np.floor(values * (multiplier * 2.0**-31) + 0.5) != (values * multiplier + 2**30) >> 31
    factors = np.arange(1, 2**15, dtype=np.int64)
    return any(bool(((abs(value) % factors == 0) & (abs(value) // factors < 2**15)).any()) for value in values[found])


#: Variances at which the inverse root is shifted by another power of four; index 15 is the variance 1 alone.
_THRESHOLDS = np.array([2 ** (29 - 2 * index) for index in range(15)], np.int64)
_ALONE = len(_THRESHOLDS)
#: Where the shift to the right becomes one to the left.
_SHIFT = 12
#: Rounds ties of a number of 42 bits with 10 after the point away from zero, and changes no other rounding.
_AWAY_42 = 1 + 2.0**-45
_INT16 = (-(2**15), 2**15 - 1)


def normalize_gates(at: Place, op: Op, layer: IntegerLstm, names: Mapping[str, str], values: Mapping[str, Value]) -> dict[str, Value]:
    """Gates, normalized over their cells.

    Args:
        at: where the nodes go.
        op: the operator.
        layer: its arithmetic.
        names: its inputs by what they are.
        values: the sum of each gate, float64 integers in the range of int16, of shape (rows, cells).

    Returns:
        Such integers, in steps of 2**-12.
    """
    gates, cells = {gate: layer.gates[gate] for gate in values}, len(layer.gates["forget"].weights[0])
    total = at.node("Concat", *values.values(), axis=1).cast("int64").then("Reshape", axes(-1, len(gates), cells))
    mean, variance = _moments(total, gates.values(), cells)
    multiplier, right = _inverse_root(variance)
    centred = _rescale_dynamic(total * 1024 - mean, multiplier, right)
    zeros = at.constant(np.zeros(cells, np.int32))
    weights = [at.value(at.b.stored_value(names[f"{gate}_norm"]), "int16") for gate in gates]
    biases = [at.value(at.b.stored_value(names[name]), "int32") if (name := f"{gate}_bias") in names else zeros for gate in gates]
    factors, added = (
        at.node("Concat", *rows, axis=0).then("Reshape", axes(len(gates), cells)).cast("float64") for rows in (weights, biases)
    )
    rounded = ((centred * factors + added) * (2.0**-10 * _AWAY_42)).round()
    limited = _own_rescale(at, op, gates.values(), cells).emit(rounded).clip(*_INT16)
    parts = at.split(limited.then("Reshape", axes(-1, len(gates) * cells)), [cells] * len(gates), axis=1)
    return dict(zip(gates, parts, strict=True))


def _moments(total: Value, gates: Iterable[IntegerGate], cells: int) -> tuple[Value, Value]:
    """Mean, with 10 bits after the point, and variance of each gate, int64 of shape (rows, gates, 1). Div truncates, as there."""
    mean = total.reduce("ReduceSum", 2) * 1024 / cells
    squares = (total * total).reduce("ReduceSum", 2) * (2**20 // cells)
    variance = (squares - mean * mean) / 2**20
    floors = np.array([[max(1, int(10000 * _norm(gate)[1]))] for gate in gates], np.int64)
    return mean, (variance < 1).where(floors, variance)


def _inverse_root(variance: Value) -> tuple[Value, Value]:
    """Multipliers, int64, and factors of the shift to the right after them, float64."""
    at, index = variance.at, np.arange(_ALONE + 1)
    place = (variance < _THRESHOLDS).cast("int64").reduce("ReduceSum", 2)
    half = (variance * at.constant(4**index).then("Gather", place) / 4 / 2 + 1) / 2
    # The iteration goes up from 1 to its end, 2 at most: cubes stay below 8, no number leaves its 31 bits, and none is negative.
    x = ((THREE_HALVES * ONE + 2**30 >> 31) - _high_product(half, ONE)) * 8
    for _ in range(ITERATIONS - 1):
        cube = _high_product(_high_product(x, x), x) * 64
        x = (_high_product(x, THREE_HALVES) - _high_product(half, cube)) * 8
    left = at.constant(2 ** np.maximum(0, index - _SHIFT)).then("Gather", place)
    found = _high_product(x, HALF_ROOT) * left
    multiplier = variance.equals(1).where(LARGEST, found)
    right = np.maximum(0, _SHIFT - index)
    return multiplier, at.constant(np.where(right > 0, 2.0**-right * AWAY, 1.0)).then("Gather", place)


def _rescale_dynamic(value: Value, multiplier: Value, right: Value) -> Value:
    """MultiplyByQuantizedMultiplier of int64 below 2**27 with what is dynamic."""
    above = value * multiplier + (2**62 + 2**30)
    return ((above / 2**31 - 2**31).cast("float64") * right).round()


def _high_product(a: Value, b: Value | int) -> Value:
    """The high half of a doubled product of positive numbers, rounded."""
    return (a * b + 2**30) / 2**31


def _own_rescale(at: Place, op: Op, gates: Iterable[IntegerGate], cells: int) -> Rescale:
    """From steps of the factors to those of a gate: their scale times 2**12."""
    factors, bounds = [], []
    for gate in gates:
        weights, scale = _norm(gate)
        bias = np.zeros(1) if gate.bias is None else np.abs(gate.bias.astype(np.float64))
        factors.append(float(np.float32(scale)) * 2.0**_SHIFT if scale >= 2.0**-32 else 0.0)
        bounds.append((_largest(cells) * float(np.abs(weights.astype(np.int64)).max()) + float(bias.max()) + 512) / 1024)
    return Rescale.of(np.array(factors)[:, None], np.array(bounds)[:, None], op, at.b, "a layer normalization")


def _norm(gate: IntegerGate) -> tuple[Array, float]:
    assert gate.norm is not None
    return gate.norm


def _largest(cells: int) -> float:
    """The largest magnitude of a normalized value with 10 bits after the point. The kernel takes floor(2**20 / cells) for 2**20 / cells, so
    its variance is too small and the bound exceeds the square root of cells."""
    lost = 1024.0 * (2**20 % cells)
    return float(min(2.0**26, 1024 * np.sqrt(cells * (lost + 4)) * 1.01 + 2))


#: What makes multiples of 2^-31 up to 2^31 no ties, and brings no other number to one: ties go away from zero.
AWAY_40 = 1 + 2.0**-40


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
        return by(by(value, multiplier * 2.0 ** (bits - 31)).round_up(), 2.0**shift * AWAY_40).round()

    sign = kind_of(op).sum_sign
    *factors, last = pair_factors(sign, (first, second), output)
    operands = [at.stored(name, "float64") for name in op.inputs]
    if sign:
        once = rounds_pairs_once(sign, *(b.tensor(name).shape for name in op.inputs))
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
    along = (-1, *[1] * ((b.operand(op, 1).rank or 3) - 2))
    bias = at.stored(op.inputs[2], "float64").then("Unsqueeze", np.arange(1, len(along)))
    multiplier, bits = short_multipliers(effective_scale(data.scale, weights.scale, output.scale))
    factor = (multiplier * 2.0**-bits).reshape(along if multiplier.size > 1 else ())
    steps = ((high * 256 + low + bias) * factor).round_up()
    steps.clip(*_limits(op, b)).finish(op.outputs[0])


def _limits(op: Op, b: Builder) -> tuple[int, int]:
    tensor, bounds = b.result(op), activation_bounds(op)
    return integer_range(tensor.dtype) if bounds == (None, None) else clip_range(tensor, bounds)
