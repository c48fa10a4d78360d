"""What references of LiteRT's kernels share: most compute on steps, stored integers less their zero points; and the integers of its kernels
of two values, and of its conversions: XNNPACK's and TFLite's own, also where their 32 bits overflow or C leaves the result undefined; the
sources are in arithmetic, or in the docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from qconvert.arithmetic import (
    BYTE_PAIR_BITS,
    INTEGER_FACTORS,
    PAIR_BITS,
    pair_factors,
    rescale_down,
    rescale_once,
    rescale_twice,
    round_half_away,
    rounds_pairs_once,
    shift_half_up,
    tflite_comparison_tables,
    tflite_divide,
    tflite_pair,
    tflite_requantize,
    xnnpack_add,
    xnnpack_requantize,
)
from qconvert.arithmetic import requantize as requantize_sums
from qconvert.arithmetic.additions import Addition
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range
from qconvert.kernels.kernel import Integers, activated_range, quantizations_of
from qconvert.kernels.products import Requantizer
from qconvert.operators import kind_of
from qconvert.operators.values import compute

#: How near to the middle between two integers a number may fall to either, in steps.
_NEAR_TIES = 1e-3


def on_steps(operands: int = 1) -> Callable[[Callable[..., Array | None]], Callable[..., Integers | None]]:
    """Return a decorator that makes a reference of a function (operator, steps of the data, their quantizations, quantization of the
    result, options by name) -> steps of the result, None where they are not known.

    The reference knows integers where data and result have one type and one scale each.

    Args:
        operands: how many inputs are data, the first ones.
    """

    def decorate(compute: Callable[..., Array | None]) -> Callable[..., Integers | None]:
        @wraps(compute)
        def reference(graph: Graph, op: Op, stored: Sequence[Any], **options: Any) -> Integers | None:
            types = {graph[name].dtype for name in (*op.inputs[:operands], op.name)}
            if len(types) > 1 or any(value is None for value in stored[:operands]):
                return None
            quantizations = quantizations_of(graph, op, operands)
            if not quantizations:
                return None
            *given, output = quantizations
            steps = [np.asarray(value, np.int64) - item.point for value, item in zip(stored, given, strict=False)]
            found = compute(op, steps, given, output, **options)
            return None if found is None else Integers.clip_to_limits(graph, op, found + output.point)

        return reference

    return decorate


def slope_of(op: Op) -> float:
    """Return the factor of negative values of a LeakyRelu; 1 for what has none, such as a Requantize."""
    return float(op["alpha"]) if "alpha" in kind_of(op).attributes else 1.0


def quantizations_of_16_bits(graph: Graph, op: Op, stored: Sequence[Any]) -> tuple[Quantization, Quantization] | None:
    """Return the quantizations of data and result, if there are data and both are int16 with one scale."""
    quantizations = quantizations_of(graph, op)
    is_known = quantizations and stored[0].size and graph[op.inputs[0]].dtype == graph[op.name].dtype == "int16"
    return (quantizations[0], quantizations[1]) if is_known else None


def to_integers(found: tuple[Array, bool]) -> Integers:
    """Return the integers of a kernel that computes all elements alike, with the fault if something overflows."""
    return Integers((found[0],), "overflows" if found[1] else "")


def _add(graph: Graph, op: Op, stored: Sequence[Any], kernel: Addition) -> Integers | None:
    quantizations, types = quantizations_of(graph, op, None), {graph[name].dtype for name in op.names}
    if len(quantizations) != 3 or len(types) > 1 or any(value is None for value in stored):
        return None
    return Integers.clip_to_limits(
        graph, op, kernel(stored[0], stored[1], (quantizations[0], quantizations[1]), quantizations[2], graph[op.name].dtype)
    )


def pair(graph: Graph, op: Op, stored: Sequence[Any], plain: bool) -> Integers | None:
    """ADD and SUB by TFLite's own kernels; see arithmetic.tflite_pair(). What they give is not known where the last multiplier is no
    fraction, as their preparation demands (add.cc, sub.cc).

    Operands of an optimized ADD of bytes are rounded once, twice or down, as vectors, tails and broadcasts do; those of int16 once or
    twice (arithmetic.rounds_pairs_once()), and once differently again by multipliers below 2**-15 (measured, LiteRT 2.3).

    Args:
        graph, op, stored: as of any reference.
        plain: of the reference kernels.
    """
    found = quantizations_of(graph, op, None)
    is_wide, sign = graph[op.name].dtype in ("int16", "uint16"), kind_of(op).sum_sign
    if len(found) != 3 or any(value is None for value in stored):
        return None
    *factors, last = pair_factors(sign, (found[0], found[1]), found[2], PAIR_BITS if is_wide else BYTE_PAIR_BITS)
    is_once = not plain and is_wide and rounds_pairs_once(sign, *map(np.shape, stored[:2]))
    if last >= 1 or (is_once and min(factors) < 2.0**-15):
        return None
    has_vectors = not plain and not is_wide and sign > 0
    roundings = (rescale_twice, rescale_once, rescale_down) if has_vectors else (rescale_once if is_once else rescale_twice,)
    results = [_add(graph, op, stored, partial(tflite_pair, sign, rescale=rounding)) for rounding in roundings]
    known = [result.ways[0] for result in results if result is not None]
    return Integers.of_parts(known) if known else None


def add_by_xnnpack(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """ADD of bytes by XNNPACK; see arithmetic.xnnpack_add()."""
    return _add(graph, op, stored, xnnpack_add)


@on_steps(2)
def subtract_by_xnnpack(op: Op, steps: Sequence[Array], given: Sequence[Quantization], output: Quantization) -> Array:
    """SUB of bytes by XNNPACK: its addition with the second multiplier below zero (xnn_create_subtract_nd_qs8)."""
    (first, second), shift = INTEGER_FACTORS["xnnpack"]((given[0], given[1]), output)
    return shift_half_up(steps[0] * first - steps[1] * second, shift)


@on_steps(2)
def squared_difference(op: Op, steps: Sequence[Array], given: Sequence[Quantization], output: Quantization, bits: int = 7) -> Array | None:
    """SQUARED_DIFFERENCE: operands are brought to a quantization of twice the larger scale, with so many bits more
    (squared_difference.cc, which demands a last multiplier below 1)."""
    scales = [item.step for item in given]
    common = 2 * max(scales)
    first, second = (rescale_twice(item << bits, scale / common) for item, scale in zip(steps, scales, strict=True))
    factor = common**2 / (2.0 ** (2 * bits) * output.step)
    return rescale_twice((first - second) ** 2, factor) if factor < 1 else None


def multiply_dense(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """FULLY_CONNECTED of int16; the optimized kernel computes without a bias in a way of its own, which is not known."""
    return Requantizer("tflite_float", bits=16)(graph, op, stored) if op.has(2) else None


def choose(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """What chooses among stored integers of one quantization, such as MAXIMUM and SELECT_V2, or clips them at a number, as RELU does."""
    tensors = [graph[name] for name in (*kind_of(op).data(op), op.name)]
    chosen = [tensor for tensor in tensors if tensor.is_quantized or tensor.data is None or tensor.data.size != 1]
    if any(value is None for value in stored) or any(not chosen[0].shares_quantization(tensor) for tensor in chosen):
        return None
    if not chosen[0].is_quantized or len({tensor.dtype for tensor in chosen}) > 1:
        return None
    found = evaluate_op(graph, op, stored)[0]
    if len(chosen) < len(tensors) and (found.real is None or _has_ties(found.real, chosen[0])):
        return None
    return Integers((found.stored,))


def _has_ties(values: Array, tensor: Tensor) -> bool:
    """Whether some float values are so near to the middle between two integers of a tensor that kernels round them otherwise."""
    quantization = tensor.require_quantization()
    steps = values / quantization.step
    return quantization.axis is not None or bool((np.abs(np.abs(steps - np.rint(steps)) - 0.5) < _NEAR_TIES).any())


def concatenate(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """CONCATENATION of uint8, which brings each part to the quantization of the result in float32 (ConcatenationWithScaling,
    reference/concatenation.h)."""
    quantizations, types = quantizations_of(graph, op, None), {graph[name].dtype for name in op.names}
    if not quantizations or types != {"uint8"} or any(value is None for value in stored):
        return None
    *given, output = quantizations
    parts = []
    for value, own in zip(stored, given, strict=True):
        factor = own.scale[0] * (np.float32(1) / output.scale[0])
        scaled = np.asarray(value, np.float32) * factor + np.float32(-own.point) * factor
        parts.append(value if own == output else round_half_away(scaled) + output.point)
    return Integers.clip_to_limits(graph, op, np.concatenate(parts, int(op["axis"])))


def quantize_by_xnnpack(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """QUANTIZE from float32 by XNNPACK, which multiplies by the reciprocal of the scale, ties to even (xnn_create_convert_nc_f32_qs8)."""
    found = quantizations_of(graph, op, 0)
    if not found or graph[op.inputs[0]].dtype != "float32" or stored[0] is None or np.isnan(stored[0]).any():
        return None
    with np.errstate(all="ignore"):
        steps = np.asarray(stored[0] * (np.float32(1) / found[0].scale[0]), np.float64)
    return Integers.clip_to_limits(graph, op, np.rint(np.clip(steps, -(2.0**31), 2.0**31)) + found[0].point)


def requantize_by_xnnpack(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """QUANTIZE from bytes to bytes by XNNPACK; see arithmetic.xnnpack_requantize()."""
    found = quantizations_of(graph, op)
    return Integers((xnnpack_requantize(stored[0], found[0], found[1], graph[op.name].dtype),)) if found else None


def requantize(graph: Graph, op: Op, stored: Sequence[Any], plain: bool) -> Integers | None:
    """QUANTIZE from integers to integers by TFLite's own kernel; see arithmetic.tflite_requantize().

    Args:
        graph, op, stored: as of any reference.
        plain: of the reference kernels. The optimized one of bytes takes ties of the second rounding up (optimized_ops.h, Requantize).
    """
    data, result = graph[op.inputs[0]], graph[op.name]
    quantizations = quantizations_of(graph, op)
    if not quantizations:
        return None
    if plain or {data.dtype, result.dtype} - {"int8", "uint8"}:
        return to_integers(tflite_requantize(stored[0], quantizations[0], quantizations[1], result.dtype))
    steps = np.asarray(stored[0], np.int64) - quantizations[0].point
    factor, zero_point = quantizations[0].step / quantizations[1].step, quantizations[1].point
    return Integers((requantize_sums(steps, factor, zero_point, result.dtype, "tflite_ruy"),))


def compare_stored(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """GREATER, LESS and their like of int16, which compare stored integers, whatever the scales (comparisons.cc; measured)."""
    if any(value is None for value in stored[:2]):
        return None
    is_exact = graph[op.inputs[0]].shares_quantization(graph[op.inputs[1]])
    return Integers((compute(op, stored[0], stored[1]),), "" if is_exact else "compares stored integers of two scales")


def divide(graph: Graph, op: Op, stored: Sequence[Any], precision: str = "float32") -> Integers | None:
    """DIV, also with quotients that need shifts undefined in C; tflite-micro divides the scales in float64."""
    quantizations, types = quantizations_of(graph, op, None), {graph[name].dtype for name in op.names}
    if any(value is None for value in stored[:2]) or not quantizations or len(types) > 1 or not types < {"int8", "uint8", "int16"}:
        return None
    limits = activated_range(graph, op)
    values, divisors = np.broadcast_arrays(*stored)
    return to_integers(tflite_divide(values, divisors, quantizations[0], quantizations[1], quantizations[2], limits, precision))


def compare(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """Comparisons of bytes, EQUAL and NOT_EQUAL of int16; at scales from 1 on in vectors, and after the last one."""
    sides = [(graph[name].per_tensor, graph[name].dtype) for name in op.inputs]
    given = [(found, dtype) for found, dtype in sides if found is not None and dtype in ("int8", "uint8", "int16")]
    if any(value is None for value in stored[:2]) or len(given) < len(sides):
        return None
    tables = [tflite_comparison_tables(*side) for side in given]
    places = [data.astype(np.int64) - integer_range(dtype)[0] for data, (_, dtype) in zip(stored, given, strict=True)]
    overflows = any(len(forms) > 1 for forms in tables)
    ends = (0, -1) if overflows else (0,)
    ways = [[forms[end][place] for forms, place in zip(tables, places, strict=True)] for end in ends]
    return Integers(tuple(compute(op, *way) for way in ways), "overflows" if overflows else "")
