"""The integers of LiteRT's kernels of functions of one value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erfc
from typing import Any

import numpy as np

from qconvert.arithmetic import (
    effective_scale,
    multiply_by_quantized_multiplier,
    quantize,
    quantize_multiplier,
    rescale_twice,
    round_half_away,
    round_half_even,
    rounding_divide_by_pot,
    tflite_curve,
    tflite_hard_swish,
    tflite_table,
    xnnpack_leaky_relu,
)
from qconvert.arithmetic.fixed_point_functions import gemmlowp_logistic, gemmlowp_tanh, inverse_root
from qconvert.graph import Array, Graph, Op, Quantization
from qconvert.graph.activations import clip_range
from qconvert.kernels.kernel import Integers, quantizations_of
from qconvert.kernels.litert.references import on_steps, quantizations_of_16_bits, requantize, requantize_by_xnnpack, to_integers

_Given = Sequence[Quantization]


def _multiplier(given: Quantization, output: Quantization, precision: str, slope: Any = 1.0) -> float:
    """Return scale * slope / scale of the result, as TFLite computes it in float32, and tflite-micro in float64."""
    return float(effective_scale(given.scale[0], slope, output.scale[0], precision))


@on_steps()
def relu(op: Op, steps: Sequence[Array], given: _Given, output: Quantization, precision: str = "float32") -> Array:
    """RELU (QuantizedReluX, activations.cc)."""
    return np.maximum(rescale_twice(steps[0], _multiplier(given[0], output, precision)), 0)


@on_steps()
def absolute(op: Op, steps: Sequence[Array], given: _Given, output: Quantization, precision: str = "float32") -> Array:
    """ABS (AbsEvalQuantized, elementwise.cc)."""
    size = np.abs(steps[0])
    return size if given[0].scale[0] == output.scale[0] else rescale_twice(size, _multiplier(given[0], output, precision))


@on_steps()
def leaky_relu(op: Op, steps: Sequence[Array], given: _Given, output: Quantization, precision: str = "float32") -> Array:
    """LEAKY_RELU of TFLite's own kernels: a multiplier for either sign (LeakyReluPrepare, activations.cc)."""
    above, below = (rescale_twice(steps[0], _multiplier(given[0], output, precision, slope)) for slope in (1.0, op["alpha"]))
    return np.where(steps[0] >= 0, above, below)


@on_steps(2)
def parametric_relu(op: Op, steps: Sequence[Array], given: _Given, output: Quantization, precision: str = "float32") -> Array:
    """PRELU (PreluPrepare, activations.cc; reference/prelu.h)."""
    above = rescale_twice(steps[0], _multiplier(given[0], output, precision))
    return np.where(steps[0] >= 0, above, rescale_twice(steps[0] * steps[1], _multiplier(given[0], output, precision, given[1].scale[0])))


@on_steps()
def _rescale(op: Op, steps: Sequence[Array], given: _Given, output: Quantization) -> Array:
    """RELU6 and its like before they clip (QuantizedReluX, activations.cc)."""
    return rescale_twice(steps[0], _multiplier(given[0], output, "float32"))


#: Bounds of RELU, RELU6, RELU_N1_TO_1 and RELU_0_TO_1.
_BOUNDS = ((0.0, np.inf), (0.0, 6.0), (-1.0, 1.0), (0.0, 1.0))


def clip(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """RELU6 and its like (QuantizedReluX, activations.cc); a Clip with other bounds is a QUANTIZE, a MAXIMUM and a MINIMUM."""
    rescales = is_activation(graph, op)
    return _clip(graph, op, _rescale(graph, op, stored) if rescales else requantize(graph, op, stored, plain=True), rescales)


def clip_by_xnnpack(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """A Clip with bounds that no operator of TFLite has, a QUANTIZE, a MAXIMUM and a MINIMUM by XNNPACK."""
    return _clip(graph, op, requantize_by_xnnpack(graph, op, stored), rescales=False)


def is_activation(graph: Graph, op: Op) -> bool:
    """Whether a Clip is RELU6 or its like in a .tflite file."""
    return graph.is_from("tflite") or _find_bounds(graph, op) in _BOUNDS


def _find_bounds(graph: Graph, op: Op) -> tuple[float, float] | None:
    """Return the bounds of a Clip; None unless these are real constants."""
    ends = [-np.inf, np.inf]
    for place in (1, 2):
        if op.has(place):
            bound = graph[op.inputs[place]]
            if bound.data is None or bound.is_quantized or "float" not in bound.dtype:
                return None
            ends[place - 1] = float(bound.data.flat[0])
    return ends[0], ends[1]


def _clip(graph: Graph, op: Op, found: Integers | None, rescales: bool) -> Integers | None:
    """Return integers between the bounds of a Clip; None unless these are real constants."""
    result, ends = graph[op.name], _find_bounds(graph, op)
    if found is None or ends is None or result.quantization is None:
        return None
    if rescales:
        low, high = clip_range(result, ends)
    else:
        low, high = (int(end) for end in quantize(np.array(ends, np.float32), result.quantization, result.dtype))
    return Integers(tuple(np.clip(way, low, high) for way in found.ways), found.fault)


@on_steps()
def square_root(op: Op, steps: Sequence[Array], given: _Given, output: Quantization) -> Array:
    """SQRT in float32, of which the fraction is dropped (SqrtEval, elementwise.cc)."""
    root = np.sqrt(np.maximum(given[0].scale[0] * steps[0].astype(np.float32), 0)) / output.scale[0]
    return np.asarray(np.trunc(root).astype(np.int64))


@on_steps()
def inverse_square_root(op: Op, steps: Sequence[Array], given: _Given, output: Quantization, precision: str = "float32") -> Array:
    """RSQRT (RsqrtEvalQuantized, elementwise.cc): 20 bits of 1 / sqrt(steps), then the factor of the scales, which TFLite multiplies in
    float32 (SetRsqrtOutputMultiplier), and tflite-micro in float64 (measured)."""
    before, after = (item.scale[0].astype(precision) for item in (given[0], output))
    multiplier, shift = quantize_multiplier(1 / float(np.sqrt(before) * after))
    inverse, own = inverse_root(np.maximum(steps[0], 1))
    found = multiply_by_quantized_multiplier(multiply_by_quantized_multiplier(1, inverse, own + 20), multiplier, shift - 20)
    return np.where(steps[0] > 0, found, 2**31 - 1)


def hard_swish(graph: Graph, op: Op, stored: Sequence[Any], precision: str = "float32") -> Integers | None:
    """HARD_SWISH of bytes; see arithmetic.tflite_hard_swish()."""
    found, dtype = quantizations_of(graph, op), graph[op.name].dtype
    if not found or dtype not in ("int8", "uint8"):
        return None
    return Integers((tflite_hard_swish(stored[0], found[0], found[1], dtype, precision),))


def leaky_relu_by_xnnpack(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """LEAKY_RELU of bytes by XNNPACK; see arithmetic.xnnpack_leaky_relu()."""
    found, dtype = quantizations_of(graph, op), graph[op.name].dtype
    if not found or graph[op.inputs[0]].dtype != dtype:
        return None
    return Integers((xnnpack_leaky_relu(stored[0], found[0], found[1], dtype, float(op["alpha"])),))


_ONE, _HALF = np.float32(1), np.float32(0.5)
#: A function of float32 that a kernel makes its table of.
Function = Callable[[Array], Array]


def _in_float64(function: Function) -> Function:
    """Return a function that rounds to float32 what float64 gives, as C's library does but for a last bit."""
    return lambda x: np.asarray(function(x.astype(np.float64)).astype(np.float32))


exp, log, tanh, _expm1 = (_in_float64(function) for function in (np.exp, np.log, np.tanh, np.expm1))
#: XNNPACK's, other in a last bit than sigmoid().
xnnpack_sigmoid = _in_float64(lambda x: 1 / (1 + np.exp(-x)))


def elu(x: Array) -> Array:
    return np.where(x < 0, _expm1(x), x)


def elu_by_exp(x: Array) -> Array:
    """tflite-micro's, which loses digits next to zero (elu.cc)."""
    return np.where(x < 0, exp(x) - _ONE, x)


def inverse_root_of(x: Array) -> Array:
    return np.asarray(_ONE / np.sqrt(x))


def sigmoid(x: Array) -> Array:
    return np.asarray(_ONE / (_ONE + exp(-x)))


def _gelu(x: Array) -> Array:
    complement = [erfc(value) for value in (x * -np.float32(0.5**0.5)).reshape(-1).tolist()]
    return np.asarray(_HALF * x * np.array(complement, np.float32).reshape(x.shape))


def _gelu_by_tanh(x: Array) -> Array:
    return np.asarray(_HALF * x * (_ONE + tanh(np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x))))


def _to_float_steps(function: Function, steps: Array, given: Quantization, output: Quantization) -> Array:
    with np.errstate(all="ignore"):
        values = function(given.scale[0] * steps.astype(np.float32)) * (_ONE / output.scale[0])
        return np.asarray(np.clip(values, np.float32(-(2.0**31)), np.float32(2.0**31)))


@on_steps()
def lookup_table(op: Op, steps: Sequence[Array], given: _Given, output: Quantization, function: Function) -> Array:
    """A function of bytes: the kernel computes a table in float32 when it is prepared (LUTPopulate in common.h, activations.cc,
    elementwise.cc)."""
    return round_half_away(_to_float_steps(function, steps[0], given[0], output).astype(np.float64)).astype(np.int64)


def gelu(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """GELU of bytes by a table."""
    return lookup_table(graph, op, stored, function=_gelu_by_tanh if op["approximate"] == "tanh" else _gelu)


#: Integer bits of the data.
_CURVE_BITS = 4


def _curve_in_fixed_point(steps: Array, given: Quantization, function: Callable[[Array, int, int], Array], bits: int, lowest: int) -> Array:
    """Return gemmlowp's function of 32 bits, with 4 integer bits of data and some of results, of which one is the least."""
    multiplier, shift = quantize_multiplier(given.step * 2.0 ** (31 - _CURVE_BITS))
    radius = int((2**_CURVE_BITS - 1) * 2.0 ** (31 - _CURVE_BITS - int(shift)))
    data = multiply_by_quantized_multiplier(np.clip(steps, -radius, radius), multiplier, shift)
    found = rounding_divide_by_pot(function(data, _CURVE_BITS, 31), 31 - bits)
    return np.where(steps <= -radius, lowest, np.where(steps >= radius, 2**bits, found))


@on_steps()
def sigmoid_in_fixed_point(op: Op, steps: Sequence[Array], given: _Given, output: Quantization) -> Array:
    """LOGISTIC of int8 by tflite-micro (reference/integer_ops/logistic.h)."""
    return _curve_in_fixed_point(steps[0], given[0], gemmlowp_logistic, 8, 0)


@on_steps()
def tanh_in_fixed_point(op: Op, steps: Sequence[Array], given: _Given, output: Quantization) -> Array:
    """TANH of int8 by tflite-micro (reference/integer_ops/tanh.h)."""
    return _curve_in_fixed_point(steps[0], given[0], gemmlowp_tanh, 7, -(2**7))


@on_steps()
def curve_by_xnnpack(op: Op, steps: Sequence[Array], given: _Given, output: Quantization, function: Function) -> Array:
    """A function of bytes by XNNPACK's table: the zero point joins before the rounding, whose ties are even
    (xnn_create_elu_nc_qs8 and its like, init_lut_op)."""
    zero_point = output.point
    stored = _to_float_steps(function, steps[0], given[0], output) + np.float32(zero_point)
    return np.asarray(round_half_even(stored).astype(np.int64) - zero_point)


def curve(graph: Graph, op: Op, stored: Sequence[Any], function: str, plain: bool) -> Integers | None:
    """Sigmoid and Tanh of int16.

    Args:
        graph, op, stored: as of any reference.
        function: see arithmetic.tflite_curve().
        plain: of the reference kernels, not of the optimized ones.
    """
    found = quantizations_of_16_bits(graph, op, stored)
    return None if found is None else to_integers(tflite_curve(stored[0], found[0].step, function, plain))


def lookup_table_of_16_bits(graph: Graph, op: Op, stored: Sequence[Any], function: Function, outside: int | None = None) -> Integers | None:
    """A function of int16 by lines between 513 points; see arithmetic.tflite_table().

    Args:
        graph, op, stored: as of any reference.
        function: of float32.
        outside: what the kernel takes for the function of numbers that are not positive; None where it is computed.
    """
    found = quantizations_of_16_bits(graph, op, stored)
    if found is None:
        return None
    given, output = (item.scale[0] for item in found)

    def values(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return function(x) if outside is None else np.where(x > 0, function(x), np.float32(outside) * output)

    return to_integers(tflite_table(stored[0], values, float(given), float(output)))
