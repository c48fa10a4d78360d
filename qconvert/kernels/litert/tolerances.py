"""How far LiteRT's integers may be from the exact values, kernel by kernel, each from its source; also those of TFLite's int16 lookup
tables, lines between 513 points over the whole range of the input.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic.kernels import XNNPACK_ADD_BITS
from qconvert.graph import Array, Graph, Op, integer_range
from qconvert.kernels.kernel import COARSE, constant_tolerance, quantizations_of
from qconvert.kernels.litert.references import slope_of
from qconvert.kernels.tolerances import UNKNOWN, Found, fine, is_linear, right_shifts
from qconvert.operators import kind_of, reduced_count
from qconvert.operators.values import compute

#: A point is rounded and moved by a rounded amount, of which two roundings are part.
_ROUNDED = 1.5
_STEPS, _EACH = 512, 128


def lookup_table(graph: Graph, op: Op, exact: Array, outside: int | None = None) -> Found:
    """Lines between 513 points of a function of int16; without known scales the tolerance is that of a table. For numbers that are not
    positive the kernel takes `outside`, if it is given."""
    quantizations = quantizations_of(graph, op, of_any_axis=True)
    if not quantizations:
        return table(graph, op, exact)
    given, result = (quantization.step for quantization in quantizations)

    def steps(codes: Array) -> Array:
        with np.errstate(all="ignore"):
            values = compute(op, codes * given) / result
        return np.asarray(np.clip(values if outside is None else np.where(codes > 0, values, outside), -(2.0**31), 2.0**31))

    codes = np.arange(-32768, 32768, dtype=np.float64)
    points = -32768 + np.arange(_STEPS + 1) * 65535 / _STEPS
    stored = steps(points) * (65536 / 65535)
    middle = steps((points[:-1] + points[1:]) / 2) * (65536 / 65535)
    stored[:-1] -= ((stored[:-1] + stored[1:]) / 2 - middle) / 2
    stored = np.clip(stored, -32768, 32767)
    share = np.tile(np.arange(_EACH) / _EACH, _STEPS)
    lines = np.repeat(stored[:-1], _EACH) * (1 - share) + np.repeat(stored[1:], _EACH) * share
    wanted = steps(codes)
    off = np.abs(lines - np.clip(wanted, -32768, 32767)) + _ROUNDED
    changes = np.diff(wanted if outside is None else wanted[codes > 0])
    if (changes < 0).any() and (changes > 0).any():  # it falls and rises: an exact value has two inputs
        return np.full(exact.shape, off.max()), True
    order = np.argsort(wanted, kind="stable")
    places = np.searchsorted(wanted[order], exact)
    near = np.maximum(off[order], np.maximum(np.roll(off[order], 1), np.roll(off[order], -1)))  # the last bit of the exact value
    return np.asarray(near[np.clip(places, 0, codes.size - 1)]), True


#: The second rounding of a multiplier whose shift is not known: 2^-(e + 1) with e = 1; without a shift there is none.
_MOST_TWICE = 0.25

#: Of tables of 256 floats and chains of 16 bits.
table = constant_tolerance(0.03)

#: Steps of the result of LOG_SOFTMAX in 1.
_LOG_STEPS = 16
#: There are no kernels of uint16: what a source stores so is int16 in a result.
_SIXTEEN = ("int16", "uint16")


def _second_rounding(graph: Graph, op: Op, elements: float = 1.0) -> float:
    """2^-(e + 1), e the smallest right shift of a multiplier: the product is rounded before it is shifted, and then again. Without a shift,
    which one channel may lack next to others, there is one rounding."""
    shifts = right_shifts(graph, op, elements)
    return UNKNOWN if shifts is None else float(2.0 ** -(shifts[shifts > 0].min(initial=1 << 10) + 1.0))


def rounded_twice(graph: Graph, op: Op, exact: Array) -> Found:
    return fine(exact) + _second_rounding(graph, op), False


def added_twice(graph: Graph, op: Op, exact: Array) -> Found:
    """The sum has 20 bits more than its data, 15 of int16, with a quantization of twice the larger scale (reference/add.h, add.cc), whose
    steps count where those of the result are as fine, as after the difference of equal values. The operand of that scale is halved exactly.
    The other is rounded twice after its factor, which has 31 bits where int16 fills 30; and so is the sum."""
    step = growth(graph, op) * 2.0 ** (-14 if graph[op.name].dtype in _SIXTEEN else -19)
    scales = [float(quantization.scale.max()) for name in op.inputs[:2] if (quantization := graph[name].quantization) is not None]
    factor = min(scales, default=1.0) / (2 * max(scales, default=1.0))
    return fine(exact) + 2e-3 + step * (0.5 + _twice(factor) + factor / 2) + _twice(step), step > COARSE


def added_once(graph: Graph, op: Op, exact: Array) -> Found:
    """XNNPACK's sums of two values: ratios of scales in float32, rounded to multipliers of which the larger one has 20 bits, each times up
    to 255 steps (arithmetic.add_multipliers())."""
    return fine(exact) + 255 * 2.0**-XNNPACK_ADD_BITS * 2.0 ** np.floor(np.log2(growth(graph, op))), False


def squared_difference(graph: Graph, op: Op, exact: Array, bits: int = 7) -> Found:
    """The difference has 7 bits more than its data, none where these have 16, with a quantization of twice the larger scale
    (squared_difference.cc). The operand of that scale is halved, exactly if there are bits for it; the other is rounded twice after its
    factor. In the square these errors count twice, times the difference; the square is rounded twice after its own factor."""
    quantizations = quantizations_of(graph, op, 2, of_any_axis=True)
    if not quantizations:
        return table(graph, op, exact)
    one, other, result = (quantization.step for quantization in quantizations)
    step = (2 * max(one, other) * 2.0**-bits) ** 2 / result
    halved = 0.0 if bits else 0.5
    off = halved + (halved if one == other else 0.5 + _twice(min(one, other) / (2 * max(one, other))))
    found = off * (2 * np.sqrt(np.abs(exact) * step) + off * step)
    return fine(exact) + found + _twice(step), bool(found.max(initial=0) > COARSE)


def _twice(factor: float) -> float:
    """What a second rounding adds to the first one after a factor: 2^-(e + 1), e being its right shift."""
    shift = -int(np.frexp(factor)[1])
    return float(2.0 ** -(shift + 1)) if shift > 0 else 0.0


def growth(graph: Graph, op: Op) -> float:
    """The largest scale of an operand, in steps of the result; 1 where one is not known."""
    scales = [float(found.scale.max()) for found in quantizations_of(graph, op, 2, of_any_axis=True)]
    return max(scales[:-1]) / scales[-1] if scales else 1.0


def rounded_once(graph: Graph, op: Op, exact: Array) -> Found:
    """XNNPACK's sums of products; depthwise ones of uint8 weights that state an axis, even with one scale, it leaves to TFLite's own."""
    kind, weights = kind_of(op), graph[op.inputs[1]]
    if kind.has_windows and not kind.spreads and weights.dtype == "uint8" and weights.shape is not None and weights.shape[1:2] == (1,):
        return rounded_twice(graph, op, exact)
    return fine(exact), False


def averaged_once(graph: Graph, op: Op, exact: Array) -> Found:
    """A 32-bit sum in float32, times a float32 of two scales and a count: a few more roundings of 24 bits."""
    return 4 * fine(exact), False


def mean(graph: Graph, op: Op, exact: Array, is_sum: bool = False) -> Found:
    """A sum, by one multiplier that holds the number n of elements, 2^floor(log2(n)) in its shift (reference_ops::QuantizedMeanOrSum)."""
    data = graph[op.inputs[0]].static_shape
    if data is None:
        return fine(exact) + _MOST_TWICE, False
    count = 1.0 if is_sum else float(np.prod(data)) / max(exact.size, 1)
    return fine(exact) + _second_rounding(graph, replace(op, inputs=op.inputs[:1]), 2.0 ** np.floor(np.log2(max(count, 1)))), False


def eight_bits(graph: Graph, op: Op, exact: Array) -> Found:
    """x * round(256 * ratio) / 256, x being steps of the input less its zero point: off by up to |x| / 512, |x| at most 255 (XNNPACK:
    src/reference/unary-elementwise.cc and the microkernels qs8-vcvt, qs8-vlrelu)."""
    quantizations = quantizations_of(graph, op, of_any_axis=True)
    if not quantizations:
        return np.full(exact.shape, 255 * 2.0**-9), True
    given, output = (quantization.step for quantization in quantizations)
    ratio = given * output**-1
    slope = min(1.0, abs(slope_of(op)))
    steps = np.abs(exact) / ratio / np.where(exact < 0, slope or 1.0, 1.0)
    return fine(exact) + np.minimum(steps, 255) * 2.0**-9, True


def rescaling(graph: Graph, op: Op, exact: Array) -> Found:
    """By TFLite's own kernel, a multiplier that rounds twice, such as Relu to another quantization (QuantizedReluX in activations.cc), or
    Abs (AbsEvalQuantized in elementwise.cc)."""
    return fine(exact) + _second_rounding(graph, replace(op, inputs=op.inputs[:1])), False


def by_sign(graph: Graph, op: Op, exact: Array) -> Found:
    """A multiplier that rounds twice and does not follow from the scales alone, such as a second one for negative values."""
    return fine(exact) + _MOST_TWICE, False


def brought_to_one_quantization(graph: Graph, op: Op, exact: Array) -> Found:
    """Its kernel takes one quantization, so QUANTIZE stands before whatever has another: see eight_bits()."""
    return fine(exact) + 255 * 2.0**-9, True


def sixteen_bits(graph: Graph, op: Op, exact: Array) -> Found:
    """Sums of 64 bits by 16 bits of a multiplier from 2^14 to 2^15, which is off by a share of up to 2^-15; without a bias of int64 sums
    have 32 bits, and are rounded twice (fully_connected.cc, conv.cc)."""
    return fine(exact) + np.maximum(np.abs(exact) * 2.0**-15, _second_rounding(graph, op)), True


def _step(graph: Graph, op: Op) -> float:
    """Return the scale of the result: 2^-15 in the kernel, another after a QUANTIZE."""
    quantization = graph[op.name].quantization
    return 2.0**-15 if quantization is None else quantization.step


def softmax_on_16_bits(graph: Graph, op: Op, exact: Array) -> Found:
    """Two tables of 513 points: exp, which is off by 1.6 of 2^-15 and rounded twice, and 1 / sum (reference/softmax.h, SoftmaxInt16).

    An error of a summand counts with its share of the sum, which is 1 / (largest result) times the largest summand, 1. The last entry of
    the table is exp(-10), stored as 2 of 2^-15; values farther below the largest one get it too. Differences are multiplied by
    scale * 6553.5 in 32 bits; these overflow if the scale is above 5, such as that of a mask of -1e9: see references.py.
    """
    shares = np.abs(exact) * _step(graph, op)
    largest = shares.max(axis=op["axis"], keepdims=True, initial=0)
    off = 1.5 + 2.6 * largest + shares * (1.6 + 2 * exact.shape[op["axis"]] * largest)
    return off * 2.0**-15 / _step(graph, op), True


def interpolation(graph: Graph, op: Op, exact: Array, fraction_of_size: bool) -> Found:
    if not is_linear(op):
        return table(graph, op, exact)
    sizes = graph[op.name].static_shape or (1024,)
    coordinate = (max(sizes) if fraction_of_size else 1) * 2.0**-10
    low, high = integer_range(graph[op.name].dtype)
    return np.full(exact.shape, 0.02 + (high - low) * coordinate), True


def average_pool(graph: Graph, op: Op, exact: Array, twice: bool) -> Found:
    """With one quantization an average is rounded once; else it is a convolution by 1 / elements of the window."""
    rescaled = graph[op.inputs[0]].quantization != graph[op.name].quantization
    window = float(np.prod(op["kernel_shape"]))
    return fine(exact) + (_second_rounding(graph, op, window) if rescaled and twice else 0), False


def reduce_prod(graph: Graph, op: Op, exact: Array) -> Found:
    """A product of n elements, scaled by the n-th root of its factor at each step, by 16 bits of it, and rounded each time; the
    error of a step is multiplied by all further elements (reduce.h, QuantizedReduceProd; reduce.cc, GetQuantProdScaling). Values above 16
    bits may overflow the 32 bits of the next step, with any result."""
    data, result = graph[op.inputs[0]], graph[op.name]
    count = reduced_count(graph, op)
    if data.quantization is None or result.quantization is None or not count:
        return table(graph, op, exact)
    step = data.quantization.step * result.quantization.step ** (-1 / count)
    low, high = integer_range(data.dtype)
    zero = data.quantization.point
    widest, most = max(high - zero, zero - low) * step, float(np.subtract(*integer_range(result.dtype)[::-1]))
    off = 0.0
    for _ in range(count - 1):
        off = min(off * widest + 0.5, most)
    found = fine(exact) + off * step + count * 2.0**-15 * np.abs(exact)
    return np.where((data.dtype in _SIXTEEN) & (np.abs(exact) > 2.0**15), 2.0**17, found), True


def division(graph: Graph, op: Op, exact: Array) -> Found:
    """The quotient of what fills 31 bits, shifted right by what was gained, rounded twice; undefined shifts are in references.py."""
    return fine(exact) + 2e-3, True


def log_softmax(graph: Graph, op: Op, exact: Array) -> Found:
    """The reference kernel of int8 gives the lowest integer, 255 steps below 0, to what lies 31 * m or more below the largest value, m in
    [0.5, 1) being the fraction of the data's scale (CalculateInputRadius with 5 integer bits, quantization_util.cc; log_softmax.h)."""
    quantization = graph[op.inputs[0]].quantization
    found, _ = table(graph, op, exact)
    if quantization is None:
        return found, False
    fraction, _ = np.frexp(quantization.step)
    cut = np.where(exact <= -31 * fraction * _LOG_STEPS, exact + 255, 0.0)
    return np.maximum(found, cut), bool((cut > COARSE).any())
