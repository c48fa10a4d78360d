"""What stored integers of source and result stand for in a proof: the meaning of constants, the elements from which a tensor comes, and
the codes that it can have. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from qconvert.arithmetic import accumulator_scale, scale_and_zero_point
from qconvert.checking.attributes_and_limits import limits_of
from qconvert.checking.exchanged_values import SAME_CODES
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op
from qconvert.evaluate.curves import codes_of
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, equal_data, integer_range
from qconvert.operators import kind_of
from qconvert.operators.properties import ELEMENTWISE, Suits

#: What a bias may be off a tie by rounding alone, in steps of the accumulator.
_CLOSE = 1e-3


def has_byte_codes(tensor: Tensor) -> bool:
    """Whether a tensor stores 8-bit integers with one scale and zero point."""
    return tensor.dtype in SAME_CODES[0] and tensor.per_tensor is not None


def stored_offset(before: Tensor, after: Tensor) -> int | None:
    """What is added to stored integers of one tensor to give the other, of the same float values; None if the quantizations differ
    otherwise."""
    a, b = before.quantization, after.quantization
    if a is None or b is None:
        return 0 if a is b and before.dtype == after.dtype else None
    if a.axis != b.axis or a.block_size != b.block_size or not np.array_equal(a.scale, b.scale):
        return None
    offsets = np.unique(b.zero_point - a.zero_point)
    if offsets.size != 1:
        return None
    if before.dtype == after.dtype:
        return 0 if not offsets[0] else None
    bits = 128 if {before.dtype, after.dtype} == SAME_CODES[0] else 2**15 if {before.dtype, after.dtype} == SAME_CODES[1] else 0
    difference = int(offsets[0])
    return difference if bits and difference == (bits if after.dtype.startswith("u") else -bits) else None


def compare_constants(before: Tensor, after: Tensor, perm: Sequence[int]) -> str:
    """In words, how constants differ in what they mean; "" if they do not. Constants next to data may be turned with these."""
    if not perm and before.shares_quantization(after) and equal_data(before.data, after.data):
        return ""
    for word, a, b in zip(("values", "scales"), _remove_zero_point(before), _remove_zero_point(after), strict=True):
        if perm and max(a.ndim, b.ndim) > len(perm):
            return f"has other {word}"
        if perm and a.ndim and b.ndim:
            a, b = (side.reshape((1,) * (len(perm) - side.ndim) + side.shape) for side in (a, b))
            a = a.transpose(perm)
        elif a.size == b.size == 1:
            a, b = a.reshape(()), b.reshape(())
        alike = a.shape == b.shape or word == "scales"
        if not alike or not (np.array_equal(a, b, equal_nan=a.dtype.kind == "f") or (word == "scales" and bool(np.all(a == b)))):
            return f"has other {word}"
    return ""


def _remove_zero_point(tensor: Tensor) -> tuple[Array, Array]:
    """A constant's integers from the zero point, and its scales, which broadcast against them; or plain values and 0."""
    assert tensor.data is not None
    if tensor.quantization is None:
        return tensor.data, np.zeros(())
    scale, point = scale_and_zero_point(tensor.quantization, tensor.data.shape)
    if "int" not in tensor.dtype:
        return tensor.data, np.asarray(scale)
    wide = {1: np.int16, 2: np.int32}.get(tensor.data.dtype.itemsize, np.int64)
    return tensor.data.astype(wide) - point.astype(wide), np.asarray(scale)


def is_rounded_bias(first: Tensor, second: Tensor, scales: Sequence[Quantization | None]) -> bool:
    """Whether the bias of one of two products is that of the other, rounded to the scale of the accumulator.

    Args:
        first, second: constants.
        scales: the quantizations of data and weights.
    """
    data, weights = scales
    if first.is_quantized == second.is_quantized or first.shape != second.shape or data is None or weights is None:
        return False
    apart = np.abs(first.float_values() - second.float_values())
    return bool((apart <= (0.5 + _CLOSE) * accumulator_scale(data, weights)).all())


#: The most elements of a tensor whose places are listed one by one.
_MOST_LISTED = 2**25
#: Above this rank no transposition is searched.
_MOST_AXES = 5


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """The elements of a tensor as elements of another one, its root.

    Attributes:
        root: its name.
        shape: sizes into which the root's elements are put, in their order; None where they are not all known.
        perm: the transposition of these that gives the tensor; None where `places` says more.
        places: for each element its place in the root; None where `perm` says it all.
        offset: what is added to the root's stored integers.
        codes: what operators make of each code of the root, from the lowest, before the offset is added; None where they change none.
        by: these operators.
    """

    root: str
    shape: tuple[int, ...] | None
    perm: tuple[int, ...] | None
    places: Array | None = None
    offset: int = 0
    codes: Array | None = None
    by: tuple[Op, ...] = ()

    @classmethod
    def of(cls, tensor: Tensor, offset: int = 0, perm: Sequence[int] | None = None) -> Elements:
        """A tensor as its own root, or as a transposition of it."""
        return cls(tensor.name, tensor.static_shape, tuple(range(tensor.rank or 0)) if perm is None else tuple(perm), None, offset)

    def list_places(self) -> Array | None:
        """For each element its place in the root; None where sizes are not known or too large."""
        if self.places is not None:
            return self.places
        if self.shape is None or self.perm is None or np.prod(self.shape, dtype=np.float64) > _MOST_LISTED:
            return None
        return np.arange(int(np.prod(self.shape)), dtype=np.int32).reshape(self.shape).transpose(self.perm)

    def is_transposed(self, other: Elements, perm: Sequence[int]) -> bool:
        """Whether a transposition of these elements gives others of the same root."""
        if self.root != other.root:
            return False
        if self.perm is not None and other.perm is not None and self.shape == other.shape and len(perm) == len(self.perm):
            if tuple(self.perm[axis] for axis in perm) == other.perm:
                return True
        mine, theirs = self.list_places(), other.list_places()
        return mine is not None and theirs is not None and mine.ndim == len(perm) and np.array_equal(mine.transpose(perm), theirs)

    def is_same(self, other: Elements, rank: int) -> bool:
        """Whether others are the same codes of the same elements, in the same order."""
        alike = self.codes is other.codes or (
            self.codes is not None and other.codes is not None and np.array_equal(self.codes, other.codes)
        )
        return alike and self.offset == other.offset and self.is_transposed(other, range(rank))

    def find_permutation(self, other: Elements) -> tuple[int, ...] | None:
        """A transposition of these elements that gives others of the same root; None if there is none."""
        if self.root != other.root:
            return None
        if self.perm is not None and other.perm is not None and self.shape == other.shape and len(self.perm) == len(other.perm):
            return tuple(self.perm.index(axis) for axis in other.perm)
        mine, theirs = self.list_places(), other.list_places()
        if mine is None or theirs is None or mine.ndim != theirs.ndim or mine.ndim > _MOST_AXES:
            return None
        fitting = (perm for perm in permutations(range(mine.ndim)) if mine.transpose(perm).shape == theirs.shape)
        return next((perm for perm in fitting if np.array_equal(mine.transpose(perm), theirs)), None)


def follow_elements(graph: Graph, op: Op, known: Mapping[str, Elements]) -> list[Elements] | None:
    """Return the outputs of data movement on a tensor whose elements are known; None for other operators."""
    if not op.inputs or op.inputs[0] not in known or any(name in known for name in op.inputs[1:] if name):
        return None
    given = known[op.inputs[0]]
    if (offset := _find_offset(graph, op)) is not None:
        return [replace(given, offset=given.offset + offset)]
    return _move_elements(graph, op, given)


def collect_operators(
    writers: Mapping[str, Op], graph: Graph, name: str, known: Container[str]
) -> tuple[tuple[Op, ...], tuple[str, ...]] | None:
    """Return the operators that compute a tensor of known ones, in the graph's order, and those that they read; None if what they read is
    not known.

    Args:
        writers: what computes each tensor of the graph.
        graph, name: of the tensor.
        known: the names of tensors that are known; constants need not be.
    """
    found, read, wanted = set[int](), dict[str, None](), [name]
    while wanted:
        op = writers.get(wanted.pop())
        if op is None:
            return None
        found.add(id(op))
        given = [item for item in op.inputs if item and graph[item].data is None]
        read.update((item, None) for item in given if item in known)
        wanted += [item for item in given if item not in known and not (item in writers and id(writers[item]) in found)]
    return tuple(op for op in graph.ops if id(op) in found), tuple(read)


def follow_clip(graph: Graph, op: Op, known: Mapping[str, Elements]) -> list[Elements] | None:
    """The output of an operator that only clips the codes of a tensor whose elements are known."""
    if not op.inputs or op.inputs[0] not in known:
        return None
    found = clip_elements(graph, op, known[op.inputs[0]])
    return None if found is None else [found]


def _move_elements(graph: Graph, op: Op, given: Elements) -> list[Elements] | None:
    """Return the outputs of data movement on one computed input, if they are the same elements for all values; None for other operators.

    Args:
        graph, op: the operator; further inputs are constants.
        given: the elements of its data.
    """
    kind = kind_of(op)
    if kind.rule == "relabel":
        return [given]
    results = [graph[name] for name in op.outputs if name]
    if kind.rule != "move" and (
        kind.layout.suits is not Suits.DECIDES or kind.sums_products or not _is_exact_upscale(graph[op.inputs[0]], results[0])
    ):
        return None
    if given.perm is not None and kind.layout.suits is Suits.TRANSPOSES and len(given.perm) == len(op["perm"]):
        return [replace(given, perm=tuple(given.perm[axis] for axis in op["perm"]))]
    if kind.keeps_order and given.perm == tuple(range(len(given.perm or ()))) and given.places is None:
        return [replace(given, shape=results[0].static_shape, perm=tuple(range(results[0].rank or 0)))]
    listed = given.list_places()
    if listed is None or any(graph.constant(name) is None for name in op.inputs[1:] if name):
        return None
    # What chooses by value, computes, or fills gaps gives other elements for other values, or none of them.
    codes = np.random.default_rng(0).permutation(np.arange(1, listed.size + 1)) * np.where(np.arange(listed.size) % 3, 1, -1)
    order = np.arange(listed.size).reshape(listed.shape)
    found, coded = (_evaluate_places(graph, op, values) for values in (order + 1, codes[order]))
    if found is None or coded is None or not all(_has_same_places(*pair, codes) for pair in zip(found, coded, strict=True)):
        return None
    flat = listed.reshape(-1)
    return [replace(given, perm=None, places=flat[np.asarray(value, np.int64) - 1]) for value in found]


def _has_same_places(found: Array, coded: Array, codes: Array) -> bool:
    """Whether results are the same elements whatever their values are: numbers from 1 on, and codes of these."""
    whole = np.asarray(found)
    if whole.size and not ((whole >= 1) & (whole <= codes.size) & (whole == np.rint(whole))).all():
        return False
    return np.array_equal(codes[whole.astype(np.int64) - 1], coded)


def _is_exact_upscale(data: Tensor, result: Tensor) -> bool:
    """Whether data of one quantization may be made larger by powers of two, for which all kernels find the same nearest elements."""
    before, after = data.static_shape, result.static_shape
    if before is None or after is None or len(before) != len(after) or 0 in before or not data.shares_quantization(result):
        return False
    return all(b % a == 0 and (b // a) & (b // a - 1) == 0 for a, b in zip(before, after, strict=True))


def _evaluate_places(graph: Graph, op: Op, values: Array) -> list[Array] | None:
    names = op.inputs[0], *op.outputs
    tensors = {name: replace(graph[name], dtype="int64", quantization=None) for name in names if name}
    constants = [graph.constant(name) for name in op.inputs[1:]]
    try:
        return [item.stored for item in evaluate_op(replace(graph, tensors={**graph.tensors, **tensors}), op, [values, *constants])]
    except QConvertError:
        return None


def _find_offset(graph: Graph, op: Op) -> int | None:
    """What an operator adds to stored integers that it brings to a quantization of the same scale, as of int8 to uint8; None if it does
    more."""
    if kind_of(op).rule != "convert":
        return None
    given, result = (graph[name] for name in (op.inputs[0], op.outputs[0]))
    quantizations = given.quantization, result.quantization
    if {given.dtype, result.dtype} - {"int8", "uint8"} or quantizations[0] is None or quantizations[1] is None:
        return None
    if quantizations[0].axis is not None or not np.array_equal(quantizations[0].scale, quantizations[1].scale):
        return None
    offset = quantizations[1].point - quantizations[0].point
    return offset if offset == (int(result.dtype == "uint8") - int(given.dtype == "uint8")) * 128 else None


def clip_elements(graph: Graph, op: Op, given: Elements) -> Elements | None:
    """The result of an operator that makes codes of the codes of one tensor, with the same quantization, such as a Clip or Relu; None of
    others.

    Args:
        graph, op: the operator.
        given: the elements of its data.
    """
    if kind_of(op).layout is not ELEMENTWISE or len(op.outputs) != 1:
        return None
    data, result = graph[op.inputs[0]], graph[op.outputs[0]]
    further = [graph[name] for name in op.inputs[1:] if name]
    if (
        not has_byte_codes(data)
        or not data.shares_quantization(result)
        or any(item.data is None or item.data.size != 1 for item in further)
    ):
        return None
    codes = codes_of(data.dtype)
    try:
        found = evaluate_op(graph, op, [codes, *map(graph.constant, op.inputs[1:])])[0].stored
    except QConvertError:
        return None
    return replace(given, codes=_compose_codes(given, found.reshape(codes.shape), codes), by=(*given.by, op))


def apply_activation(tensor: Tensor, limits: tuple[int, int], given: Elements) -> Elements:
    """A result, of which an activation leaves the codes within limits."""
    if not has_byte_codes(tensor) or limits == integer_range(tensor.dtype):
        return given
    codes = codes_of(tensor.dtype)
    return replace(given, codes=_compose_codes(given, np.clip(codes, *limits), codes))


def _compose_codes(given: Elements, found: Array, codes: Array) -> Array:
    """What is made of each code of the root, if `found` is made of each of the tensor's."""
    low = int(codes[0])
    before = np.arange(codes.size) if given.codes is None else given.codes + given.offset - low
    return found.astype(np.int64)[before] - given.offset


#: What a bound may be off the middle between two codes by rounding alone, in steps.
_CLOSE_CODES = 1e-3


def describe_other_codes(graph: Graph, writers: Mapping[str, Op], own: Elements, given: Elements) -> str:
    """In words, which codes of their root make other ones in the result, of those that it can have; "" if none does.

    Args:
        graph, writers: the source, and what computes each of its tensors.
        own, given: elements of one root, of source and result.
    """
    if own.codes is None and given.codes is None:
        return ""
    tensor = graph[own.root]
    codes = codes_of(tensor.dtype).astype(np.int64)
    a, b = (codes if side.codes is None else side.codes for side in (own, given))
    differ = np.flatnonzero((a != b) & _find_possible_codes(graph, writers, own.root, codes))
    if not differ.size:
        return ""
    code = codes[differ[0]]
    at = f"code {code} of {own.root!r}" if differ.size == 1 else f"{differ.size} codes of {own.root!r}, such as {code}"
    by = ", ".join(str(op) for side in (own, given) for op in side.by[-1:])
    return f"{at}: {a[differ[0]]} in the source, {b[differ[0]]} in the result{f' ({by})' if by else ''}"


def _find_possible_codes(graph: Graph, writers: Mapping[str, Op], name: str, codes: Array) -> Array:
    """Which codes a tensor of the source can have before an activation."""
    writer, quantization = writers.get(name), graph[name].quantization
    assert quantization is not None
    if writer is not None and is_clipped_sum(writer, graph):
        return np.ones(codes.size, bool)
    low, high = limits_of(graph, writers, name)
    steps = [(end / quantization.step) + quantization.point for end in (low, high)]
    return (codes > steps[0] - 0.5 - _CLOSE_CODES) & (codes < steps[1] + 0.5 + _CLOSE_CODES)


def is_clipped_sum(op: Op, graph: Graph) -> bool:
    """Whether an operator sums products to bytes, which its activation may clip."""
    is_activated = bool(kind_of(op).sums_products) and "activation" in kind_of(op).attributes
    return is_activated and bool(op.outputs[0]) and has_byte_codes(graph[op.outputs[0]])
