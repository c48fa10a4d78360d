"""Results of kernels for all codes of one or two tensors of 8 bits: two kernels with equal results are proved equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qconvert.arithmetic import Difference, compare_requantizations
from qconvert.evaluate import evaluate_op
from qconvert.evaluate.curves import codes_of
from qconvert.graph import Array, Graph, Op, drop_keys, integer_range
from qconvert.kernels.accumulators import UnfitError, accumulator_of
from qconvert.kernels.kernel import Integers, Kernel, Kernels, activated_range, quantizations_of
from qconvert.kernels.products import Requantizer, SumReference, Sums, count_summed
from qconvert.operators import kind_of
from qconvert.operators.properties import ALONG_AXIS, ELEMENTWISE
from qconvert.operators.values import apply

#: (graph, operator, kernel).
Product = tuple[Graph, Op, Requantizer]
_BYTES = ("int8", "uint8")
#: Values of a constant that are tried with all codes.
_MOST_VALUES = 2**8
#: Types of one tensor of data whose codes are few enough to try them all, and of results that are compared.
WITH_16_BITS = (*_BYTES, "int16", "uint16", "bool")


def all_codes(graph: Graph, op: Op, types: tuple[str, ...] = _BYTES) -> list[Array | None] | None:
    """Return what each operand can be, shaped to broadcast to all combinations: the codes of data, the values of constants, None of absent
    operands. None unless the operator is elementwise on one or two tensors of data, with one scale for each tensor.

    Args:
        graph, op: the operator.
        types: of data and result; those of two tensors of data are bytes. Truth values have no scale.
    """
    sides = [graph[name] if name else None for name in op.inputs]
    data = [tensor for tensor in sides if tensor is not None and tensor.data is None]
    if kind_of(op).layout is not ELEMENTWISE or len(op.outputs) != 1 or not 1 <= len(data) <= 2:
        return None
    result = graph[op.outputs[0]]
    stored = data if result.dtype == "bool" and "bool" in types else [*data, result]
    if any(tensor.dtype not in (types if len(data) == 1 else _BYTES) or tensor.quantization is None for tensor in stored):
        return None
    quantizations = [tensor.quantization for tensor in (*sides, *stored) if tensor is not None]
    if any(quantization is not None and not quantization.is_per_tensor for quantization in quantizations):
        return None
    known = [codes_of(tensor.dtype) if tensor.data is None else np.unique(tensor.data) for tensor in sides if tensor is not None]
    if any(values.size > _MOST_VALUES for tensor, values in zip(filter(None, sides), known, strict=True) if tensor.data is not None):
        return None
    spread = iter(np.ix_(*known))
    return [None if tensor is None else next(spread) for tensor in sides]


def pair_codes(graph: Graph, op: Op) -> Array | None:
    """Return all pairs of codes as rows, for an operator of one tensor of bytes along an axis of two elements; None for others."""
    if len(op.inputs) != 1 or len(op.outputs) != 1 or "axis" not in op.attributes or kind_of(op).layout is not ALONG_AXIS:
        return None
    sides = graph[op.inputs[0]], graph[op.outputs[0]]
    if any(tensor.dtype not in _BYTES or tensor.per_tensor is None for tensor in sides):
        return None
    shape = sides[0].shape
    if not shape or shape != sides[1].shape or shape[int(op["axis"])] != 2:
        return None
    each = codes_of(sides[0].dtype)
    return np.stack(np.meshgrid(each, each, indexing="ij"), axis=-1).reshape(-1, 2)


def integers_for_all(graph: Graph, op: Op, kernel: Kernel | None, types: tuple[str, ...] = _BYTES) -> Array | None:
    """Compute a kernel's integers for all_codes() of these types, or pair_codes(): by its reference, or without one the exact value rounded
    once; None if unknown, or if it may give others."""
    ways = ways_for_all(graph, op, kernel, types)
    return ways[0] if len(ways) == 1 else None


def ways_for_all(graph: Graph, op: Op, kernel: Kernel | None, types: tuple[str, ...] = _BYTES) -> tuple[Array, ...]:
    """Compute all that a kernel may give for all codes, as integers_for_all() does; nothing if it is unknown."""
    codes = all_codes(graph, op, types)
    if codes is None and (pairs := pair_codes(graph, op)) is not None:
        codes, op = [pairs], op.with_attributes(axis=-1)
    if codes is None:
        return ()
    if kernel is None or kernel.reference is None:
        return (evaluate_op(graph, op, list(codes))[0].stored,)
    if (ways := _ways_at_ties(graph, op, kernel)) is not None:
        return ways
    found = kernel.compute_integers(graph, op, codes)
    return () if found is None else found.ways


#: How near to a tie a sum or product of two codes is kept as undecided, in steps of the result.
_NEAR = 1 / 64


def _ways_at_ties(graph: Graph, op: Op, kernel: Kernel) -> tuple[Array, ...] | None:
    """Compute what a kernel may give for all pairs of codes of a sum, difference or product: its reference where the exact value is as near
    to a tie as the kernel's tolerance, elsewhere the exact value, rounded. Return None of other operators, and of coarser kernels.
    """
    sides = [graph[name] for name in op.names if name]
    if kernel.tolerance is None or kind_of(op).polynomial is None or len(sides) != 3 or any(tensor.data is not None for tensor in sides):
        return None
    dtypes, quantizations = {tensor.dtype for tensor in sides}, [tensor.per_tensor for tensor in sides]
    if len(dtypes) > 1 or (kernel.fault is not None and kernel.fault(graph, op)):
        return None
    dtype, lowest = sides[0].dtype, integer_range(sides[0].dtype)[0]
    numbers = [(item.step, item.point - lowest) for item in quantizations if item is not None]
    low, high = activated_range(graph, op)
    exact = _round_pairs(op.kind, *numbers, (low - lowest, high - lowest))
    if exact is None:
        return None
    # The error of a product is a share of it, and that of a sum one of its terms, which may be larger.
    largest = exact.ends if kind_of(op).sum_sign else (low - numbers[2][1] - lowest, high - numbers[2][1] - lowest)
    tolerance = float(kernel.tolerance(graph, op, np.array(largest))[0].max())
    if not tolerance < _NEAR:
        return None
    # The corners have the largest sums and products, which a reference may refuse.
    places = np.concatenate([exact.places[exact.distances <= tolerance], [0, 255, 255 * 256, 256 * 256 - 1]])
    codes = codes_of(dtype)
    found = kernel.compute_integers(graph, op, [codes[places >> 8], codes[places & 255]])
    if found is None:
        return ()
    ways = []
    for way in found.ways:
        whole = exact.rounded + lowest if lowest else exact.rounded.copy()
        whole.flat[places] = way
        ways.append(whole.astype(dtype))
    return tuple(ways)


class _RoundedPairs(NamedTuple):
    """The exact results of all pairs of codes, rounded.

    Attributes:
        rounded: as unsigned codes, a row for each code of the first operand.
        places: in `rounded`, of those next to a tie.
        distances: of these from the tie, in steps.
        ends: the least and the largest exact result, in steps.
    """

    rounded: Array
    places: Array
    distances: Array
    ends: tuple[float, float]


@lru_cache(maxsize=16)  # kernels are compared on the same operator, stored as either type of 8 bits
def _round_pairs(
    kind: str, first: tuple[float, int], second: tuple[float, int], result: tuple[float, int], limits: tuple[int, int]
) -> _RoundedPairs | None:
    """Return the rounded results of an operator on all pairs of unsigned codes; None if some are not finite.

    Args:
        kind: of the operator.
        first, second, result: scale and zero point of the operands and the result.
        limits: the least and the largest code of the result.
    """
    codes = np.arange(256.0)
    one, other = (codes - first[1]) * first[0], (codes - second[1]) * second[0]
    steps = apply(kind, one[:, None], other).astype(np.float32)  # arrays of 64-bit numbers take ten times as long
    steps /= np.float32(result[0])
    ends = float(steps.min()), float(steps.max())
    if not np.isfinite(ends).all():
        return None
    steps += np.float32(result[1])
    rounded = np.rint(steps)
    places = np.flatnonzero(np.abs(np.subtract(steps, rounded, out=steps), out=steps) > 0.5 - 2 * _NEAR)
    near = rounded.flat[places]
    places = places[(near >= limits[0]) & (near <= limits[1])]
    exact = apply(kind, one[places >> 8], other[places & 255]) / result[0]
    return _RoundedPairs(np.clip(rounded, *limits, out=rounded).astype(np.int16), places, 0.5 - np.abs(exact - np.rint(exact)), ends)


def decided_integers(graph: Graph, op: Op, kernels: Kernels) -> Array | None:
    """Return the exact values for all_codes(), rounded once, if the kernel gives these: none is as near to a tie as its tolerance."""
    codes, quantization = all_codes(graph, op), graph[op.outputs[0]].quantization
    found = evaluate_op(graph, op, list(codes))[0] if codes is not None else None
    if found is None or found.real is None or quantization is None:
        return None
    exact = found.real / quantization.step
    position = np.clip(exact + quantization.point, *quantization.limits(graph[op.outputs[0]].dtype))
    off = 0.5 - np.abs(position - np.rint(position))
    return found.stored if bool((off > kernels.tolerance(graph, op, exact)[0]).all()) else None


#: The place of infinity among all float32 numbers in their order, from 0 of zero.
_INFINITY = 0x7F800000


def find_float_limits(graph: Graph, op: Op, kernel: Kernel | None) -> Array | None:
    """Return the least float32 that a Quantize makes each integer of, from the second lowest on, as places in the order of all float32.

    None if the kernel's integers are not known, or the operator is another one.

    Args:
        graph, op: the operator.
        kernel: whose integers grow with the data; None for those that the operator's form says.
    """
    data, result = graph[op.inputs[0]], graph[op.outputs[0]]
    if data.dtype != "float32" or result.dtype not in _BYTES or result.quantization is None or not result.quantization.is_per_tensor:
        return None
    codes = codes_of(result.dtype).astype(np.int64)[1:]
    low, high = np.full(codes.size, -_INFINITY), np.full(codes.size, _INFINITY)
    while (high > low).any():
        middle = (low + high) >> 1
        numbers = floats_in_order(middle)
        found = (
            Integers((evaluate_op(graph, op, [numbers])[0].stored,)) if kernel is None else kernel.compute_integers(graph, op, [numbers])
        )
        if found is None or len(found.ways) > 1:
            return None
        reached = found.ways[0].astype(np.int64) >= codes
        low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
    return low


def floats_in_order(places: Array) -> Array:
    """Return the float32 numbers at places in the order of all, 0 of zero."""
    return np.where(places < 0, -places - 2**31, places).astype(np.int32).view(np.float32)


def compare_products(own: Product, other: Product) -> Difference | None:
    """Compare two kernels of sums of products over every accumulator that the weights of the second's operator allow, with its bias, by the
    thresholds of each channel; None if the range of the accumulator is unknown.

    Args:
        own, other: (graph, operator, kernel), with the same weights; the operator of `other` has an integer bias or none.
    """
    graph, op, _ = other
    try:
        found = accumulator_of(graph, replace(op, attributes=drop_keys(op.attributes, "arithmetic")))
    except UnfitError:
        return None
    result = graph[op.outputs[0]].quantization
    if found is None or result is None:
        return None
    bias = np.zeros((1, 1), np.int64) if found.bias is None else found.bias.astype(np.int64).reshape(-1, 1)
    point, channels = result.point, max(len(bias), found.scale.size)

    def steps(side: Product) -> Callable[[Array], Array]:
        compute = side[2].steps_of_channels(*side[:2], bias)
        return lambda acc: compute(np.asarray(acc, np.int64)) + point

    scale = np.broadcast_to(other[2].multiplier(graph, op).reshape(-1, 1), (channels, 1))
    return compare_requantizations(steps(own), steps(other), activated_range(graph, op), found.low, found.high, scale)


#: Sums of one reduction that are tried.
_MOST_SUMS = 2**24


def integers_for_sums(graph: Graph, op: Op, reference: SumReference) -> Array | None:
    """Compute a kernel's integers for all sums of a reduction of bytes, from the lowest; None if unknown, or where there are too many."""
    data, result, quantizations, size = graph[op.inputs[0]], graph[op.outputs[0]], quantizations_of(graph, op), count_summed(graph, op)
    if size is None or not quantizations or data.dtype not in _BYTES or data.dtype != result.dtype or size * 255 > _MOST_SUMS:
        return None
    low, high = integer_range(data.dtype)
    found = reference.integers(graph, op, Sums(np.arange(size * low, size * high + 1, dtype=np.int64), size, *quantizations))
    return found.ways[0] if found is not None and len(found.ways) == 1 and not found.fault else None


def decided_averages(graph: Graph, op: Op, tolerance: float) -> Array | None:
    """Return the exact averages of bytes for all sums, from the lowest, rounded once, if the kernel gives these: none is as near to a tie
    as its tolerance. None of other operators.

    Args:
        graph, op: the operator.
        tolerance: in steps of the result, for data with its scale.
    """
    data, result, quantizations = graph[op.inputs[0]], graph[op.outputs[0]], quantizations_of(graph, op)
    is_average = kind_of(op).averages and kind_of(op).keeps_range  # which a sum does not
    count = count_summed(graph, op) if is_average else None
    if count is None or not quantizations or {data.dtype, result.dtype} - {*_BYTES} or count * 255 > _MOST_SUMS:
        return None
    given, output = quantizations
    low, high = integer_range(data.dtype)
    ratio = given.step / output.step
    exact = np.arange(count * (low - given.point), count * (high - given.point) + 1) * (ratio / count)
    position = np.clip(exact + output.point, *activated_range(graph, op))
    rounded = np.rint(position)
    is_decided = (0.5 - np.abs(position - rounded) > tolerance * max(1.0, ratio)).all()
    return rounded.astype(result.dtype) if is_decided else None


def tried_tolerance(graph: Graph, op: Op, kernel: Kernel) -> float | None:
    """Return how far the integers of a kernel's reference are from the exact values on any input, in steps beyond a rounding.

    None without a reference or all_codes(), or if the reference overflows on some input.
    """
    codes, quantization = all_codes(graph, op, WITH_16_BITS), graph[op.outputs[0]].quantization
    found = kernel.compute_integers(graph, op, codes) if codes is not None else None
    if codes is None or found is None or found.fault or quantization is None:
        return None
    real = evaluate_op(graph, op, list(codes))[0].real
    if real is None:
        return None
    position = np.clip(real / quantization.step + quantization.point, *quantization.limits(graph[op.outputs[0]].dtype))
    return max(0.0, *(float(np.abs(way - position).max() - 0.5) for way in found.ways))
