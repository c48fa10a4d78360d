"""Additions of 8-bit tensors as kernels round them, by the names of the attribute `arithmetic`, and scales at which one kernel's additions
give the integers of another.

Where onnxruntime's addition in float32 and XNNPACK's in integers disagree, they do so on a few of the 65,536 pairs, whose sums lie within a
ten-thousandth of a tie, since XNNPACK rounds its multipliers. With input scales at, or a little next to, these multipliers nearly always
every pair is equal. The same goes for PyTorch's engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np

from qconvert.arithmetic.kernels import XNNPACK_ADD_BITS, add_multipliers, has_xnnpack_add, xnnpack_add
from qconvert.arithmetic.requantize import shift_half_up
from qconvert.arithmetic.rounding import fused_multiply_add, saturate
from qconvert.arithmetic.storage import Array, Quantization, integer_range
from qconvert.arithmetic.torch_kernels import QNNPACK_ADD_BITS, fbgemm_add, has_qnnpack_add, qnnpack_add

Quantizations = tuple[Quantization, Quantization]
#: Scale and zero point.
_Numbers = tuple[float, int]
#: (stored values, stored values, quantizations, quantization of the result, type) -> stored results.
Addition = Callable[[Any, Any, Quantizations, Quantization, str], Array]

ADDITIONS: Mapping[str, Addition] = {
    "xnnpack": xnnpack_add,
    "qnnpack": qnnpack_add,
    "fbgemm": fbgemm_add,
}

#: Multipliers of both inputs and the right shift, of those that compute in integers.
INTEGER_FACTORS: Mapping[str, Callable[[Quantizations, Quantization], tuple[tuple[int, int], int]]] = {
    "xnnpack": partial(add_multipliers, bits=XNNPACK_ADD_BITS),
    "qnnpack": partial(add_multipliers, bits=QNNPACK_ADD_BITS),
}

#: Kernels that refuse some scales.
_TAKEN: Mapping[str, Callable[[Quantizations, Quantization], bool]] = {"xnnpack": has_xnnpack_add, "qnnpack": has_qnnpack_add}


def has_addition(name: str, inputs: Quantizations, output: Quantization) -> bool:
    """Whether a kernel has an addition of 8-bit data with these quantizations, each of one scale.

    Args:
        name: the `arithmetic` of an Add, which may be that of no such kernel.
        inputs, output: the quantizations.
    """
    if name not in ADDITIONS or not all(quantization.is_per_tensor for quantization in (*inputs, output)):
        return False
    return name not in _TAKEN or _TAKEN[name](inputs, output)


def is_same_addition(name: str, own: Addition, inputs: Quantizations, output: Quantization, dtype: str) -> bool:
    """Whether an addition of 8-bit data gives the integers of the kernel `name` for all 65,536 pairs of inputs.

    Args:
        name: of ADDITIONS; the kernel takes these quantizations (has_addition()).
        own: the addition, in the type's storage, whose zero points take part in roundings of float32.
        inputs, output: the quantizations.
        dtype: the type of all three.
    """
    low = integer_range(dtype)[0]
    unsigned = [item.shift_zero_point(-low) for item in (*inputs, output)]
    first, second, result = ((item.step, item.point) for item in unsigned)
    a, b = find_near_ties(*scale_codes(first, second, result), _error(*unsigned))
    wanted = ADDITIONS[name](a, b, (unsigned[0], unsigned[1]), unsigned[2], "uint8")
    found = own(a + low, b + low, inputs, output, dtype)
    return bool(np.array_equal(found.astype(np.int64) - low, wanted))


def find_near_ties(first: Array, second: Array, margin: float) -> tuple[Array, Array]:
    """Return the places in two lists of numbers of which the sum is at most so far from a tie, in the order of the first list, then of the
    second."""
    if not margin < 0.5:
        found = np.indices((first.size, second.size)).reshape(2, -1)
        return found[0], found[1]
    fractions = second - np.floor(second)
    order = np.argsort(fractions)
    sorted_twice = np.concatenate([fractions[order] - 1, fractions[order]])
    wanted = 0.5 - (first - np.floor(first))  # from -0.5 on
    starts = np.searchsorted(sorted_twice, wanted - margin)
    counts = np.searchsorted(sorted_twice, wanted + margin, side="right") - starts
    rows, before = np.repeat(np.arange(first.size), counts), np.cumsum(counts) - counts
    columns = order[(np.arange(rows.size) + np.repeat(starts - before, counts)) % second.size]
    places = np.sort(rows * second.size + columns)
    return places // second.size, places % second.size


def scale_codes(first: _Numbers, second: _Numbers, result: _Numbers, sign: int = 1) -> tuple[Array, Array]:
    """Return what each unsigned code of both inputs adds to a sum or difference, in steps of the result.

    Args:
        first, second, result: scale and zero point.
        sign: -1 of a difference.
    """
    codes = np.arange(256.0)
    return (codes - first[1]) * (first[0] / result[0]), (codes - second[1]) * (sign * second[0] / result[0])


#: Bits of the factors of additions, or of float32, less what a few roundings lose.
_ERROR_BITS = 20


def _error(first: Quantization, second: Quantization, output: Quantization) -> float:
    """How far any kernel of ADDITIONS, or one in float32, may be from the exact sum, in steps of the result."""
    return 256 * (8 * max(first.step, second.step) / output.step + 1) * 2.0**-_ERROR_BITS


#: Places on either side of a multiplier that are tried, and how far apart they are.
_PLACES, _APART = 8, 1 / 8
#: How far beyond the exact ratios, in the errors of the multipliers.
_FAR = (1, 2, 3, 4, 6, 8, 12, 16)
#: Scales below it, or above its reciprocal, would bring float32 to its limits.
_SMALLEST = 1e-30
#: Candidates that are tried on all pairs.
_MOST = 40
#: The shift of multipliers that a kernel in float32 would have.
_FLOAT_SHIFT = 22


def nudge_add_scales(
    inputs: tuple[Quantization, Quantization], output: Quantization, low: int, kernel: str = "xnnpack"
) -> tuple[Quantization, Quantization] | None:
    """Quantizations for the inputs of an addition with which float32 arithmetic gives that of a kernel for all 65,536 pairs.

    Equal are the fused kernel of onnxruntime (MlasQLinearAdd), of int8 and of uint8, with and without fused multiply-add, and the three
    operators unfused, whether the last divides by the scale or, as XNNPACK's, multiplies by its reciprocal.

    Args:
        inputs: per-tensor quantizations of 8-bit inputs.
        output: that of the result.
        low: the lowest stored value: -128 or 0.
        kernel: of ADDITIONS.

    Returns:
        Quantizations with the same zero points, and scales as the kernel rounds them; None if none were found, or it takes no such
        addition.
    """
    found = _search_scales(kernel, *(number for q in (*inputs, output) for number in (q.step, q.point - low)))
    if found is None:
        return None
    first, second = (Quantization.per_tensor(scale, q.point) for scale, q in zip(found, inputs, strict=True))
    return first, second


@lru_cache(maxsize=4096)
def _search_scales(kernel: str, a: float, a_zero: int, b: float, b_zero: int, y: float, y_zero: int) -> tuple[float, float] | None:
    """The scales for unsigned storage."""
    inputs = Quantization.per_tensor(a, a_zero), Quantization.per_tensor(b, b_zero)
    output = Quantization.per_tensor(y, y_zero)
    if not has_addition(kernel, inputs, output) or not _SMALLEST < min(a, b, y) <= max(a, b, y) < 1 / _SMALLEST:
        return None
    multipliers, shift = _multipliers(kernel, inputs, output)
    offsets = np.array(_list_offsets(_PLACES))
    scales = []
    for k, scale in enumerate((a, b)):
        exact = scale / y * 2.0**shift
        # Farther from the exact ratio in the same direction, sums that are ties at it stay on their sides.
        moved = [exact + far * (multipliers[k] - exact) + offsets[:, k] * _APART for far in _FAR]
        scales.append((y * 2.0**-shift * np.concatenate(moved)).astype(np.float32))
    # Other sums are on the same side of a tie with all of these scales.
    farthest = sum(255 * float(np.abs(values - scale).max()) / y for values, scale in zip(scales, (a, b), strict=True))
    left, right = find_near_ties(*scale_codes((a, a_zero), (b, b_zero), (y, y_zero)), _error(*inputs, output) + farthest)
    wanted = ADDITIONS[kernel](left, right, inputs, output, "uint8")
    points = a_zero, b_zero, y_zero
    for _ in range(_MOST):  # what fails on one pair takes with it all that fail on the same
        if not len(scales[0]):
            return None
        first, second = scales[0][0], scales[1][0]
        missed = np.flatnonzero(_find_mismatches(left, right, first, second, np.float32(y), points, wanted))[:64]
        if not missed.size:
            return float(first), float(second)
        fails = _find_mismatches(left[missed], right[missed], scales[0][:, None], scales[1][:, None], np.float32(y), points, wanted[missed])
        kept = np.flatnonzero(~np.any(fails[1:], axis=1)) + 1
        scales = [values[kept] for values in scales]
    return None


def _list_offsets(most: int) -> list[tuple[int, int]]:
    """Return pairs of whole numbers of at most that magnitude, those nearest to (0, 0) first."""
    numbers = range(-most, most + 1)
    return sorted(product(numbers, numbers), key=lambda pair: (abs(pair[0]) + abs(pair[1]), pair))


#: How far from XNNPACK's own multipliers others are tried, and on how many pairs that failed before all are tried.
_NEAR, _FAILED = 8, 32


def nudge_xnnpack_scales(
    wanted: Array, inputs: Quantizations, output: Quantization, dtype: str, limits: tuple[int, int]
) -> Quantizations | None:
    """Quantizations for the inputs of XNNPACK's addition with which it gives certain integers for all 65,536 pairs.

    Its multipliers are whole numbers of 20 bits; those next to the rounded ratios of scales move sums that lie next to a tie.

    Args:
        wanted: the integers for all pairs, a row for each code of the first input.
        inputs, output: per-tensor quantizations of 8-bit data.
        dtype: the type of all three.
        limits: the least and the largest integer that are stored.

    Returns:
        Quantizations with the same zero points; None if none were found.
    """
    if not has_xnnpack_add(inputs, output):
        return None
    low, high = integer_range(dtype)
    codes = np.arange(low, high + 1, dtype=np.int64)
    steps = codes - inputs[0].point, codes - inputs[1].point
    multipliers, shift = add_multipliers(inputs, output, XNNPACK_ADD_BITS)

    def add(a: Array, b: Array, factors: Array) -> Array:
        total = a * factors[..., :1] + b * factors[..., 1:]
        return np.asarray(np.clip(shift_half_up(total, shift) + output.point, *limits))

    # The multipliers move sums next to a tie alone; elsewhere XNNPACK's own have to give what is wanted.
    margin = 255 * 2 * (_NEAR + 1) * 2.0**-shift
    ratios = [multiplier * 2.0**-shift for multiplier in multipliers]
    near = find_near_ties(steps[0] * ratios[0], steps[1] * ratios[1], margin)
    own = add(steps[0][:, None], steps[1], np.array(multipliers))
    own[near] = wanted[near]
    if not np.array_equal(own, wanted):
        return None
    a, b, wanted = steps[0][near[0]], steps[1][near[1]], wanted[near]
    factors = np.array(_list_offsets(_NEAR)) + multipliers
    factors = factors[factors.min(axis=1) > 0]
    while len(factors):
        failed = np.flatnonzero(add(a, b, factors[0]) != wanted)[:_FAILED]
        if failed.size:  # what fails on one pair takes with it all that fail on the same
            fails = (add(a[failed], b[failed], factors[1:]) != wanted[failed]).any(axis=1)
            factors = factors[1:][~fails]
            continue
        first, second = map(int, factors[0])
        factors = factors[1:]
        scales = [
            Quantization.per_tensor(output.step * item / 2.0**shift, q.point) for item, q in zip((first, second), inputs, strict=True)
        ]
        found = scales[0], scales[1]
        if has_xnnpack_add(found, output) and add_multipliers(found, output, XNNPACK_ADD_BITS) == ((first, second), shift):
            return found
    return None


#: How many places of float32 scales of an addition of float values are moved, and the distance from a tie that this decides, in steps.
_MOVED, _UNDECIDED = 32, 1e-3


def nudge_float_scales(
    wanted: Array, inputs: Quantizations, output: Quantization, dtype: str, limits: tuple[int, int], sign: int
) -> Quantizations | None:
    """Quantizations of dequantized inputs whose sum or difference LiteRT quantizes to certain integers for all 65,536 pairs.

    Args:
        wanted: the integers for all pairs, a row for each code of the first input.
        inputs, output, dtype, limits: as of nudge_xnnpack_scales().
        sign: 1 for a sum, -1 for a difference.

    Returns:
        Quantizations with the same zero points, the inputs' own if they do; None if none were found.
    """
    low, high = integer_range(dtype)
    codes = np.arange(low, high + 1)
    one, other = ((codes - item.point).astype(np.float32) for item in inputs)
    sides = one[:, None], other[None, :]
    inverse = np.float32(1) / output.scale[0]

    def quantize(a: Array, b: Array, scales: tuple[Array, Array]) -> Array:
        total = (a * scales[0] + sign * (b * scales[1])) * inverse
        return np.asarray(np.clip(np.rint(total) + output.point, *limits))

    exact = (sides[0] * inputs[0].step + sign * sides[1] * inputs[1].step) / output.step
    places = np.nonzero(np.abs(exact - np.rint(exact)) > 0.5 - _UNDECIDED)
    near = sides[0][places[0], 0], sides[1][0, places[1]]
    for offsets in _list_offsets(_MOVED):
        first, second = ((item.scale[:1].view(np.int32) + np.int32(by)).view(np.float32) for item, by in zip(inputs, offsets, strict=True))
        if np.array_equal(quantize(*near, (first, second)), wanted[places]) and np.array_equal(quantize(*sides, (first, second)), wanted):
            return replace(inputs[0], scale=first), replace(inputs[1], scale=second)
    return None


def _multipliers(kernel: str, inputs: tuple[Quantization, Quantization], output: Quantization) -> tuple[tuple[float, float], int]:
    """A kernel's multipliers and shift; the exact ratios with a shift of their own where it computes in float32."""
    if kernel in INTEGER_FACTORS:
        return INTEGER_FACTORS[kernel](inputs, output)
    ratios = [item.step / output.step for item in inputs]
    shift = _FLOAT_SHIFT - int(np.floor(np.log2(max(ratios))))
    return (ratios[0] * 2.0**shift, ratios[1] * 2.0**shift), shift


def _find_mismatches(a: Array, b: Array, first: Any, second: Any, output: np.float32, points: tuple[int, int, int], wanted: Array) -> Array:
    """Where one kind of arithmetic gives another integer than `wanted`, fused ones of 8-bit integers of either type and in either order."""
    ratios = np.asarray(first / output), np.asarray(second / output)
    total = (a - points[0]).astype(np.float32) * first + (b - points[1]).astype(np.float32) * second
    missed: Array = np.zeros((), bool)
    for steps in (total / output, total * (np.float32(1) / output)):
        missed = missed | (saturate(np.rint(steps) + points[2], "uint8") != wanted)
    for low in (0, -128):
        zeros = [np.float32(point + low) for point in points]
        sides = [((codes + low).astype(np.float32), ratio, zero) for codes, ratio, zero in zip((a, b), ratios, zeros, strict=False)]
        for (x, outer, point), (y, inner, other) in (sides, sides[::-1]):  # a first operand that is broadcast changes places
            plain = x * outer + (y * inner + (zeros[2] - (outer * point + inner * other)))
            fixed = zeros[2] - fused_multiply_add(outer, point, inner * other)
            for steps in (plain, fused_multiply_add(x, outer, fused_multiply_add(y, inner, fixed))):
                missed |= saturate(np.rint(steps) - low, "uint8") != wanted
    return missed
