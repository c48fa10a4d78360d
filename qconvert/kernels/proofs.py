"""Results of kernels for all codes of one or two tensors of 8 bits: two kernels with equal results are proved equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qconvert.arithmetic import Difference, compare_requantizations, find_near_ties, scale_codes
from qconvert.evaluate import evaluate_op
from qconvert.evaluate.curves import codes_of
from qconvert.graph import Array, Graph, Op, drop_keys, integer_range
from qconvert.kernels.accumulators import UnfitError, accumulator_of
from qconvert.kernels.kernel import Integers, Kernel, Kernels, activated_range, quantizations_of
from qconvert.kernels.products import Requantizer, SumReference, Sums, addition_error, count_ones, count_summed
from qconvert.operators import kind_of
from qconvert.operators.properties import ALONG_AXIS, ELEMENTWISE
from qconvert.operators.values import apply

#: (graph, operator, kernel).
Product = tuple[Graph, Op, Requantizer]
#: (graph, operator, kernel, or None for the exact values, rounded once).
Side = tuple[Graph, Op, Kernel | None]
#: Scale and zero point.
_Numbers = tuple[float, int]
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
    result = graph[op.name]
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


def codes_along_axis(graph: Graph, op: Op, below_largest: bool = False) -> Array | None:
    """Return all pairs of codes as rows, for an operator of one tensor of bytes along an axis of two elements; None for others.

    Where only the distances to the largest element matter (Kernel.below_largest), of an axis of three elements too all rows whose largest
    element is the largest code.
    """
    if len(op.inputs) != 1 or len(op.outputs) != 1 or "axis" not in op.attributes or kind_of(op).layout is not ALONG_AXIS:
        return None
    sides = graph[op.inputs[0]], graph[op.name]
    if any(tensor.dtype not in _BYTES or tensor.per_tensor is None for tensor in sides):
        return None
    shape = sides[0].shape
    if not shape or shape != sides[1].shape or shape[int(op["axis"])] not in ((2, 3) if below_largest else (2,)):
        return None
    each = codes_of(sides[0].dtype)
    pairs = np.stack(np.meshgrid(each, each, indexing="ij"), axis=-1).reshape(-1, 2)
    return pairs if shape[int(op["axis"])] == 2 else np.concatenate([np.insert(pairs, place, each.max(), axis=1) for place in range(3)])


def integers_for_all(graph: Graph, op: Op, kernel: Kernel | None, types: tuple[str, ...] = _BYTES) -> Array | None:
    """Compute a kernel's integers for all_codes() of these types, or codes_along_axis(): by its reference, or without one the exact value
    rounded once; None if unknown, or if it may give others."""
    ways = ways_for_all(graph, op, kernel, types)
    return ways[0] if len(ways) == 1 else None


def ways_for_all(graph: Graph, op: Op, kernel: Kernel | None, types: tuple[str, ...] = _BYTES) -> tuple[Array, ...]:
    """Compute all that a kernel may give for all codes, as integers_for_all() does; nothing if it is unknown."""
    codes = all_codes(graph, op, types)
    if codes is None and (rows := codes_along_axis(graph, op, kernel is not None and kernel.below_largest)) is not None:
        codes, op = [rows], op.with_attributes(axis=-1)
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


def agree_for_all(own: Side, others: Iterable[Side]) -> bool:
    """Whether integers_for_all() of several kernels are known and the same for all codes, where each may store them as its own type of 8
    bits, and sums also with scales of its own. Sums and products of two tensors are computed next to ties alone; nothing is asked of
    `others` where those of the first are not known."""
    first = _make_pair_kernel(*own)
    if first is not None:
        others = list(others)
        pairs = [pair for side in others if (pair := _make_pair_kernel(*side)) is not None]
        margin = max(map(first.distance, pairs), default=first.tolerance)
        if len(pairs) == len(others) and margin < _NEAR:
            places = first.places(margin)
            found = first.compute(places) or ()
            return len(found) == 1 and all(_gives_only(pair.compute(places) or (), found[0]) for pair in pairs)
    ways = tuple(map(_to_unsigned, ways_for_all(*own)))
    return len(ways) == 1 and all(_gives_only(tuple(map(_to_unsigned, ways_for_all(*side))), ways[0]) for side in others)


def _gives_only(ways: tuple[Array, ...], wanted: Array) -> bool:
    """Whether a kernel gives certain integers and no others."""
    return len(ways) == 1 and np.array_equal(ways[0], wanted)


def _to_unsigned(stored: Array) -> Array:
    """Return integers of 8 bits, or truth values, as unsigned codes."""
    return stored.astype(np.int16) + (128 if stored.dtype == np.int8 else 0)


def _ways_at_ties(graph: Graph, op: Op, kernel: Kernel) -> tuple[Array, ...] | None:
    """Compute what a kernel may give for all pairs of codes of a sum, difference or product: its reference where the exact value is as near
    to a tie as the kernel's tolerance, elsewhere the exact value, rounded. Return None of other operators, and of coarser kernels.
    """
    pair = _make_pair_kernel(graph, op, kernel)
    if pair is None or (exact := _round_pairs(*pair.numbers)) is None:
        return None
    places = pair.places(pair.tolerance)
    found = pair.compute(places)
    if found is None:
        return ()
    dtype = graph[op.name].dtype
    lowest, ways = integer_range(dtype)[0], []
    for way in found:
        whole = exact.copy()
        whole.flat[places] = way
        ways.append((whole + lowest if lowest else whole).astype(dtype))
    return tuple(ways)


class _PairKernel(NamedTuple):
    """A kernel of a sum, difference or product of two tensors of 8 bits, computed for pairs of codes whose exact result is next to a tie.

    Attributes:
        side: the kernel.
        numbers: kind, scale and zero point of operands and result, and the least and the largest code of the result; all codes unsigned.
        terms: what each code of both operands adds to a sum or difference, in steps of the result; None of a product.
        tolerance: how far the kernel may be from the exact result, in steps.
    """

    side: tuple[Graph, Op, Kernel]
    numbers: tuple[str, _Numbers, _Numbers, _Numbers, tuple[int, int]]
    terms: tuple[Array, Array] | None
    tolerance: float

    def places(self, margin: float) -> Array:
        """Return the places, among all pairs, of those at most so far from a tie, and of the corners, which have the largest sums and
        products: a reference may refuse these."""
        if self.terms is not None:
            first, second = find_near_ties(*self.terms, margin)
            found = first * 256 + second
        else:
            places, distances = _products_near_ties(*self.numbers)
            found = places[distances <= margin]
        return np.concatenate([found, [0, 255, 255 * 256, 256 * 256 - 1]])

    def distance(self, other: _PairKernel) -> float:
        """Return how near to a tie of this kernel's exact result the integers of either may differ; infinity if anywhere."""
        if (self.numbers[0], *self.numbers[3:]) != (other.numbers[0], *other.numbers[3:]):
            return np.inf
        tolerance = max(self.tolerance, other.tolerance)
        if self.numbers == other.numbers:
            return tolerance
        if self.terms is None or other.terms is None:
            return np.inf
        return tolerance + sum(float(np.abs(a - b).max()) for a, b in zip(self.terms, other.terms, strict=True))

    def compute(self, places: Array) -> tuple[Array, ...] | None:
        """Return all that the kernel may give at some places, as unsigned codes; None if it is unknown."""
        graph, op, kernel = self.side
        codes = codes_of(graph[op.name].dtype)
        found = kernel.compute_integers(graph, op, [codes[places >> 8], codes[places & 255]])
        return None if found is None else tuple(map(_to_unsigned, found.ways))


def _make_pair_kernel(graph: Graph, op: Op, kernel: Kernel | None) -> _PairKernel | None:
    """Return a kernel of a sum, difference or product of two tensors of 8 bits; None of other operators, and of coarser kernels."""
    if kernel is None or kernel.reference is None or kernel.tolerance is None or len(op.names) != 3:
        return None
    sides, kind = [graph[name] for name in op.names if name], kind_of(op)
    if kind.polynomial is None or len(sides) != 3 or any(side.data is not None or side.dtype not in _BYTES for side in sides):
        return None
    quantizations = [side.per_tensor for side in sides]
    if len({side.dtype for side in sides}) > 1 or (kernel.fault is not None and kernel.fault(graph, op)):
        return None
    lowest = integer_range(sides[0].dtype)[0]
    numbers = [(item.step, item.point - lowest) for item in quantizations if item is not None]
    if len(numbers) != 3:
        return None
    low, high = activated_range(graph, op)
    given = (op.kind, numbers[0], numbers[1], numbers[2], (low - lowest, high - lowest))
    # The error of a product is a share of it, and that of a sum one of its terms, which may be larger.
    terms = scale_codes(*given[1:4], kind.sum_sign) if kind.sum_sign else None
    if terms is not None:
        largest = [float(sum(furthest(each[0], each[-1]) for each in terms)) for furthest in (min, max)]
        is_finite = bool(np.isfinite(np.array(largest, np.float32)).all())
    else:
        largest = [float(limit - numbers[2][1]) for limit in given[4]]
        is_finite = _round_pairs(*given) is not None
    tolerance = float(kernel.tolerance(graph, op, np.array(largest))[0].max()) if is_finite else np.inf
    return _PairKernel((graph, op, kernel), given, terms, tolerance) if tolerance < _NEAR else None


@lru_cache(maxsize=16)  # kernels are compared on the same operator, stored as either type of 8 bits
def _round_pairs(kind: str, first: _Numbers, second: _Numbers, result: _Numbers, limits: tuple[int, int]) -> Array | None:
    """Return the exact results of an operator on all pairs of unsigned codes, rounded and clipped; None if some are not finite."""
    steps = _compute_pairs(kind, first, second, result)
    if not np.isfinite(steps).all():
        return None
    rounded = np.rint(steps + np.float32(result[1]))
    return np.clip(rounded, *limits, out=rounded).astype(np.int16)


def _compute_pairs(kind: str, first: _Numbers, second: _Numbers, result: _Numbers) -> Array:
    """Return the results of an operator on all pairs of unsigned codes, in steps, as float32."""
    codes = np.arange(256.0)
    one, other = (codes - first[1]) * first[0], (codes - second[1]) * second[0]
    steps = apply(kind, one[:, None], other).astype(np.float32)  # arrays of 64-bit numbers take ten times as long
    steps /= np.float32(result[0])
    return np.asarray(steps)


@lru_cache(maxsize=16)
def _products_near_ties(kind: str, first: _Numbers, second: _Numbers, result: _Numbers, limits: tuple[int, int]) -> tuple[Array, Array]:
    """Return the places, among all pairs, of those whose exact result is next to a tie within the limits, and how far from it."""
    steps = _compute_pairs(kind, first, second, result) + np.float32(result[1])
    rounded = np.rint(steps)
    places = np.flatnonzero(np.abs(steps - rounded) > 0.5 - 2 * _NEAR)
    near = rounded.flat[places]
    places = places[(near >= limits[0]) & (near <= limits[1])]
    codes = np.arange(256.0)
    exact = apply(kind, (codes[places >> 8] - first[1]) * first[0], (codes[places & 255] - second[1]) * second[0]) / result[0]
    return places, 0.5 - np.abs(exact - np.rint(exact))


def decided_integers(graph: Graph, op: Op, kernels: Kernels) -> Array | None:
    """Return the exact values for all_codes(), rounded once, if the kernel gives these: none is as near to a tie as its tolerance."""
    codes, quantization = all_codes(graph, op), graph[op.name].quantization
    found = evaluate_op(graph, op, list(codes))[0] if codes is not None else None
    if found is None or found.real is None or quantization is None:
        return None
    exact = found.real / quantization.step
    position = np.clip(exact + quantization.point, *quantization.limits(graph[op.name].dtype))
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
    data, result = graph[op.inputs[0]], graph[op.name]
    if data.dtype != "float32" or result.dtype not in _BYTES or result.per_tensor is None:
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
        found = accumulator_of(graph, replace(op, attributes=drop_keys(op.attributes, "arithmetic")), of_some_weights=True)
    except UnfitError:
        return None
    result = graph[op.name].quantization
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
    data, result, quantizations, size = graph[op.inputs[0]], graph[op.name], quantizations_of(graph, op), count_summed(graph, op)
    if size is None or not quantizations or data.dtype not in _BYTES or data.dtype != result.dtype or size * 255 > _MOST_SUMS:
        return None
    low, high = integer_range(data.dtype)
    found = reference.integers(graph, op, Sums(np.arange(size * low, size * high + 1, dtype=np.int64), size, *quantizations))
    return found.ways[0] if found is not None and len(found.ways) == 1 and not found.fault else None


def integers_for_windows(graph: Graph, op: Op, kernel: Requantizer) -> Array | None:
    """Compute a kernel's integers for all sums of what a convolution with ones adds up, from the lowest; None of others, or where there are
    too many."""
    data, result, count = graph[op.inputs[0]], graph[op.name], count_ones(graph, op)
    if count is None or not kernel.takes(graph, op) or data.dtype not in _BYTES or count * 255 > _MOST_SUMS:
        return None
    given, output, (low, high) = data.per_tensor, result.per_tensor, integer_range(data.dtype)
    if given is None or output is None:
        return None
    sums = np.arange(count * (low - given.point), count * (high - given.point) + 1, dtype=np.int64)
    steps = kernel.steps_of_channels(graph, op, np.zeros((1, 1)))(sums.reshape(1, -1))
    return Integers.clip_to_limits(graph, op, steps.reshape(-1) + output.point).ways[0]


def decided_averages(graph: Graph, op: Op, tolerance: float, adds_floats: bool) -> Array | None:
    """Return the exact averages of bytes for all sums, from the lowest, rounded once, if the kernel gives these: none is as near to a tie
    as its tolerance. None of other operators.

    Args:
        graph, op: the operator.
        tolerance: in steps of the result, for data with its scale.
        adds_floats: whether the kernel may add values in float32, whose errors are no part of the tolerance.
    """
    data, result, quantizations = graph[op.inputs[0]], graph[op.name], quantizations_of(graph, op)
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
    off = tolerance * max(1.0, ratio) + (addition_error(graph, op, count) if adds_floats else 0.0)
    is_decided = (0.5 - np.abs(position - rounded) > off).all()
    return rounded.astype(result.dtype) if is_decided else None


def tried_tolerance(graph: Graph, op: Op, kernel: Kernel) -> float | None:
    """Return how far the integers of a kernel's reference are from the exact values on any input, in steps beyond a rounding.

    None without a reference or all_codes(), or if the reference overflows on some input.
    """
    codes, quantization = all_codes(graph, op, WITH_16_BITS), graph[op.name].quantization
    found = kernel.compute_integers(graph, op, codes) if codes is not None else None
    if codes is None or found is None or found.fault or quantization is None:
        return None
    real = evaluate_op(graph, op, list(codes))[0].real
    if real is None:
        return None
    position = np.clip(real / quantization.step + quantization.point, *quantization.limits(graph[op.name].dtype))
    return max(0.0, *(float(np.abs(way - position).max() - 0.5) for way in found.ways))
