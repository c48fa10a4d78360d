"""The elements of a tensor as elements of another one, from which operators move or clip them, and the codes that they can have. Nothing is
run.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, takewhile

import numpy as np

from qconvert.checking.same_codes import has_byte_codes, is_storage, stored_offset
from qconvert.checking.value_limits import limits_of
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op
from qconvert.evaluate.curves import codes_of
from qconvert.graph import Array, Graph, Op, Tensor, integer_range
from qconvert.operators import kind_of
from qconvert.operators.properties import ELEMENTWISE, Suits

#: The most elements of a tensor whose places are listed one by one.
_MOST_LISTED = 2**25
#: Above this rank no transposition is searched.
_MOST_AXES = 5
#: What a bound may be off the middle between two codes by rounding alone, in steps.
_CLOSE_CODES = 1e-3


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


@dataclass(frozen=True, slots=True)
class Followed:
    """A graph and what is known of its tensors.

    Attributes:
        graph: of source or result.
        writers: what computes each of its tensors.
        elements: of what these are elements.
    """

    graph: Graph
    writers: Mapping[str, Op]
    elements: dict[str, Elements]

    def describe_operands(self, op: Op) -> Hashable:
        """By what an operator is found: its kind, the roots of its operands, and of a state how often it was written before; None if an
        operand is not known."""
        roots = []
        for name in op.inputs:
            is_constant = not name or self.graph[name].data is not None
            if not is_constant and name not in self.elements:
                return None
            roots.append("" if is_constant else self.elements[name].root)
        return op.kind, tuple(roots), self._count_writes(op) if kind_of(op).rule == "state" else 0

    def _count_writes(self, op: Op) -> int:
        """How many operators before one write the state that it reads or writes."""
        before = takewhile(lambda item: item is not op, self.graph.ops)
        return sum(kind_of(item).has_effect and item["state"] == op["state"] for item in before)

    def follow_movement(self, op: Op) -> list[Elements] | None:
        """Return the outputs of data movement on a tensor whose elements are known; None for other operators."""
        given, graph = self.elements.get(op.inputs[0]) if op.inputs else None, self.graph
        if given is None or any(name in self.elements for name in op.inputs[1:] if name):
            return None
        if is_storage(graph, op) and has_byte_codes(graph[op.inputs[0]]):
            offset = stored_offset(graph[op.inputs[0]], graph[op.outputs[0]])
            assert offset is not None
            return [replace(given, offset=given.offset + offset)]
        return _move_elements(graph, op, given)

    def follow_clip(self, op: Op) -> list[Elements] | None:
        """Return the output of an operator that only clips the codes of a tensor whose elements are known; None for other operators."""
        given = self.elements.get(op.inputs[0]) if op.inputs else None
        found = None if given is None else clip_elements(self.graph, op, given)
        return None if found is None else [found]

    def describe_other_codes(self, own: Elements, given: Elements) -> str:
        """In words, which codes of their root make other ones in the result, of those that it can have; "" if none does.

        Args:
            own, given: elements of one root, a tensor of this graph, which is the source's: of source and result.
        """
        if own.codes is None and given.codes is None:
            return ""
        codes = codes_of(self.graph[own.root].dtype).astype(np.int64)
        a, b = (codes if side.codes is None else side.codes for side in (own, given))
        differ = np.flatnonzero((a != b) & self._find_possible_codes(own.root, codes))
        if not differ.size:
            return ""
        code = codes[differ[0]]
        at = f"code {code} of {own.root!r}" if differ.size == 1 else f"{differ.size} codes of {own.root!r}, such as {code}"
        by = ", ".join(str(op) for side in (own, given) for op in side.by[-1:])
        return f"{at}: {a[differ[0]]} in the source, {b[differ[0]]} in the result{f' ({by})' if by else ''}"

    def _find_possible_codes(self, name: str, codes: Array) -> Array:
        """Which codes a tensor can have before an activation."""
        writer, quantization = self.writers.get(name), self.graph[name].quantization
        assert quantization is not None
        if writer is not None and is_clipped_sum(writer, self.graph):
            return np.ones(codes.size, bool)
        low, high = limits_of(self.graph, self.writers, name)
        steps = [(end / quantization.step) + quantization.point for end in (low, high)]
        return (codes > steps[0] - 0.5 - _CLOSE_CODES) & (codes < steps[1] + 0.5 + _CLOSE_CODES)


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


def clip_elements(graph: Graph, op: Op, given: Elements) -> Elements | None:
    """The result of an operator that clips the codes of one tensor, such as a Clip or Relu, and computes nothing else; None of others.

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
        found = evaluate_op(graph, op, [codes, *map(graph.constant, op.inputs[1:])])[0].stored.reshape(codes.shape)
    except QConvertError:
        return None
    if not np.array_equal(found, np.clip(codes, found.min(), found.max())):
        return None
    return replace(given, codes=_compose_codes(given, found, codes), by=(*given.by, op))


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


def is_clipped_sum(op: Op, graph: Graph) -> bool:
    """Whether an operator sums products to bytes, which its activation may clip."""
    is_activated = bool(kind_of(op).sums_products) and "activation" in kind_of(op).attributes
    return is_activated and bool(op.outputs[0]) and has_byte_codes(graph[op.outputs[0]])
