"""Float results of operators that sum products, and of those that round float data at run time: what both sides may have summed, in each
way of rounding the data that the source states or the conversion declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from qconvert.arithmetic import OF_WHOLE_TENSORS
from qconvert.checking.classify import allowed_share, compare_inexact
from qconvert.checking.expected_values import bound_step_ties, bound_ties, exact_value, sum_bound
from qconvert.checking.file_in_runtime import Side
from qconvert.checking.findings import Finding
from qconvert.checking.outputs import absolute_difference, largest_magnitude
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate, evaluate_op, known_inputs
from qconvert.graph import Array, Arrays, Graph, Op
from qconvert.graph.metadata import DYNAMIC_RANGE, IN_TFLITE, has_tflite_history, read_entries, read_names
from qconvert.operators import is_dynamic, kind_of
from qconvert.operators.shapes_and_functions import called_functions
from qconvert.rewriting.parts import computable_ops

_Way = TypeVar("_Way")


def rounding_of(op: Op) -> str:
    """How an operator of dynamic range rounds its real data: its arithmetic; "" otherwise."""
    return str(op["arithmetic"]) if is_dynamic(op) else ""


def declared_roundings(graph: Graph, other: Graph, names: Iterable[str], stated: str) -> set[str]:
    """How else than the source an operator of the result may round its data: not at all, or by the range of the whole tensor, where the
    result says that the source's rounds them; in LiteRT, which does not know that range, by rows or not at all; and there as the source
    says that its own source did.

    Args:
        graph, other: the canonical graphs of source and result.
        names: of the operator's outputs in either.
        stated: how the source's operator rounds its data; see rounding_of().
    """
    names = set(names)
    noted, before = (read_entries(item.metadata, DYNAMIC_RANGE) for item in (other, graph))
    found = {"", "dynamic_tensor"} if stated and any(noted.get(name) == stated for name in names) else set()
    in_litert = has_tflite_history(other.metadata) or not names.isdisjoint(read_names(other.metadata, IN_TFLITE))
    if in_litert and not graph.is_from("tflite"):
        found |= {str(before[name]) for name in names if name in before} | ({"", "dynamic"} if stated in OF_WHOLE_TENSORS else set())
    return found


@dataclass(frozen=True, slots=True)
class Sum:
    """What a sum of products is in real numbers, where a kernel rounds its data in one way.

    Attributes:
        rounding: the way, a value of `arithmetic`; "" where the data are summed as they are.
        exact: in float64.
        bound: how far from it the order of the sum, and ties of the data, may lead; see expected_values.sum_bound().
    """

    rounding: str
    exact: Array
    bound: Array


def classify_sums(source: Array, result: Array, own: Sequence[Sum], its: Sequence[Sum]) -> Finding:
    """The finding for two sums in floats.

    Args:
        source, result: what the kernels gave.
        own, its: what the source, and the result, may have computed, one at least; each of both has to be explained by one as a whole.
    """
    a, b, off = source.astype(np.float64), result.astype(np.float64), absolute_difference(source, result)
    differing = off > 0
    (way, missed), (other, wrong) = (_find_nearest_sum(item, ways, differing) for item, ways in ((a, own), (b, its)))
    largest, equal = float(off.max(initial=0)) / (largest_magnitude(a) or 1.0), 1.0 - float(differing.mean())
    unexplained = int((missed | wrong).sum())
    if unexplained:
        reason = "the result is wrong" if wrong.any() else "the source's kernel is outside its known arithmetic"
        return Finding("unexplained", reason, equal, largest, 1.0, unexplained)
    if way != other:
        return Finding("dynamic range", f"{_ROUNDINGS[way]} compared with {_ROUNDINGS[other]}", equal, largest, 1.0)
    return Finding("approximate", "float arithmetic", equal, largest, 1.0)


#: What numbers below the smallest normal float32 may come to: XNNPACK takes them for zero, on both sides of a sum.
_FLUSHED = 4 * float(np.finfo(np.float32).tiny)

_ROUNDINGS = {
    "": "float data",
    "blocks": "data quantized in blocks",
    "dynamic": "data quantized by rows or images",
    "dynamic_images": "data quantized by images",
    "dynamic_symmetric": "data quantized symmetrically",
    "dynamic_rows": "data quantized by rows",
    "dynamic_tensor": "data quantized as a whole",
    "dynamic_reduced": "data quantized as a whole in 127 steps",
}


def _find_nearest_sum(values: Array, ways: Sequence[Sum], differing: Array) -> tuple[str, Array]:
    """The way of summing that leaves the fewest of the differing elements unexplained, and which these are."""
    found = []
    for item in ways:
        with np.errstate(invalid="ignore"):
            off = np.where(np.isfinite(values - item.exact), np.abs(values - item.exact), np.where(values == item.exact, 0.0, np.inf))
        off[np.isnan(values) != np.isnan(item.exact)] = np.nan  # which no bound explains, be it infinite
        found.append((item.rounding, differing & ~(off <= item.bound + _FLUSHED)))
    return min(found, key=lambda pair: int(pair[1].sum()))


@dataclass(slots=True)
class FloatSums:
    """The sums that may be a float output of an operator, on both sides.

    Attributes:
        graph, writers: the source's canonical graph, and the operator that computes each of its tensors.
        other: the result's canonical graph.
        sides: the files.
        op, index: the operator of the source, and which of its outputs.
        rounder: the same, or the operator before it whose result it moves.
        result: the result's operator; None if that is not known.
        values: the stored values of the source's tensors, by name.
        stated: the exact output, as `rounder` rounds its data.
        like: what the source's kernel gave.
    """

    graph: Graph
    writers: Mapping[str, Op]
    other: Graph
    sides: tuple[Side, Side]
    op: Op
    index: int
    rounder: Op
    result: Op | None
    values: Arrays
    stated: Array
    like: Array
    _bounds: dict[bool, Array | None] = field(default_factory=dict)  # of float sums, by whether the data are rounded

    def judge(self, found: Array) -> Finding:
        """The finding for what the result gave."""
        a, b = self.like, found
        ways = self._list_roundings()
        both, sums = ways[0] & ways[1], dict[str, Sum | None]()
        for way in (*sorted(both), *sorted(ways[0] ^ ways[1])):  # one that explains both is enough: each is slow
            item = sums[way] = self._compute_sum(way)
            if way in both and item is not None:
                finding = classify_sums(a, b, [item], [item])
                if not finding.is_fault:
                    return finding
        own, its = ([item for way in sorted(side) if (item := sums[way]) is not None] for side in ways)
        if not own or not its:
            return compare_inexact(a, b, kind_of(self.rounder).cancels_below)
        finding = classify_sums(a, b, own, its)
        if not finding.is_fault or not any(way.startswith("dynamic") for way in sums):
            return finding
        widened = dict[str, Sum]()  # one after the other: each is several times as large as the result
        for way, item in sorted(sums.items(), key=lambda pair: (pair[0] not in both, pair[0])):
            if item is not None:
                widened[way] = self._add_data_ties(item)
                finding = classify_sums(a, b, [widened[way]], [widened[way]]) if way in both else finding
                if way in both and not finding.is_fault:
                    return finding
        own, its = ([widened[item.rounding] for item in side] for side in (own, its))
        finding = classify_sums(a, b, own, its)
        if not finding.is_fault or not is_dynamic(self.rounder):
            return finding
        own, its = ([self._add_step_ties(item) for item in side] for side in (own, its))
        return classify_sums(a, b, own, its)

    def _list_roundings(self) -> tuple[set[str], set[str]]:
        """How the source and the result may round the data: as `rounder` says, or as was declared (declared_roundings())."""
        names = (*self.rounder.outputs, *self.op.outputs, *(self.result.outputs if self.result is not None else ()))
        stated = rounding_of(self.rounder)
        its = {stated} | declared_roundings(self.graph, self.other, names, stated)
        if not kind_of(self.rounder).sums_products:  # recurrent operators round as they say, whatever the set of kernels
            return {stated}, its
        return _add_kernel_roundings({stated}, self.sides[0]), _add_kernel_roundings(its, self.sides[1])

    def _compute_sum(self, way: str) -> Sum | None:
        """Compute the output where `rounder` rounds its data in one way; None if not known."""
        graph, rounder, stated = self.graph, self.rounder, self.stated
        changed = _set_rounding(rounder, way)
        real: Array | None = stated
        if changed != rounder:
            writers = {**self.writers, **dict.fromkeys(rounder.outputs, changed)}
            exact = exact_value(graph, changed if self.op == rounder else self.op, self.values, self.index, writers)
            real = None if exact is None else exact[0]
        if is_dynamic(changed) not in self._bounds:
            found = sum_bound(graph, changed, self.values)
            if found is not None and (share := max(side.runtime.rows(side.kernels).tile_error(graph, changed) for side in self.sides)):
                found = found + share * float(np.abs(stated).max(initial=0))
            self._bounds[is_dynamic(changed)] = None if found is None else self._reshape_bound(found)
        bound = self._bounds[is_dynamic(changed)]
        if real is not None and is_dynamic(rounder) and not kind_of(rounder).sums_products:
            bound = np.full(self.like.shape, allowed_share(self.like) * (float(np.abs(real).max(initial=0)) or 1.0))
        if real is None or bound is None or real.shape != self.like.shape:
            return None
        if changed.outputs != self.op.outputs:
            bound = bound + np.abs(real) * 2.0**-23  # of a bias that is added after
        return Sum(way, real, bound)

    def _add_data_ties(self, found: Sum) -> Sum:
        """A sum with what ties of its data may move."""
        if not kind_of(self.rounder).sums_products:
            return found
        ties = bound_ties(self.graph, _set_rounding(self.rounder, found.rounding), self.values)
        return replace(found, bound=found.bound + self._reshape_bound(ties)) if isinstance(ties, np.ndarray) else found

    def _add_step_ties(self, found: Sum) -> Sum:
        """A sum with what ties between its steps may move."""
        if not found.rounding:
            return found
        rounder = self.rounder.with_attributes(arithmetic=found.rounding)
        wide = bound_step_ties(self.graph, self.op, self.index, rounder, self.values, self.writers)
        return found if wide is None else replace(found, bound=found.bound + wide.reshape(found.exact.shape))

    def _reshape_bound(self, bound: Array) -> Array:
        """The bounds of `rounder`'s elements as those of what `op` made of them; the largest for all where they were moved about."""
        shape = self.like.shape
        if bound.shape == shape:
            return bound
        keeps = bound.size == self.like.size and kind_of(self.op).keeps_order and self.writers.get(self.op.inputs[0]) == self.rounder
        return bound.reshape(shape) if keeps else np.full(shape, bound.max(initial=0))


def _set_rounding(op: Op, way: str) -> Op:
    """The operator, where it rounds its data in one way."""
    states = "arithmetic" in kind_of(op).attributes and (way or is_dynamic(op))
    return op.with_attributes(arithmetic=way) if states else op


#: Which of these a kernel of LiteRT does, its set decides: XNNPACK takes rows, whatever a product of matrices states; TFLite's own kernels
#: take images, and convolutions whose weights have one scale round symmetrically.
_OF_KERNELS = {"dynamic", "dynamic_images", "dynamic_symmetric"}


def _add_kernel_roundings(roundings: set[str], side: Side) -> set[str]:
    """How the kernels of a side may round data where its operator says one of these."""
    is_chosen = side.runtime.rows(side.kernels).dynamic_range == "tflite" and roundings & _OF_KERNELS
    return roundings | _OF_KERNELS if is_chosen else roundings


def sums_of_functions(graph: Graph, op: Op, index: int, values: Arrays, like: Array) -> list[Sum]:
    """Return the results of functions that quantize float data at run time: with quantized data, and in float; [] for other functions."""
    inputs = known_inputs(graph, op, values) if _has_inner_rounding(graph, op) else None
    if inputs is None:
        return []
    given, functions = inputs, {name: replace(inner, ops=_use_float_data(inner.ops)) for name, inner in graph.functions.items()}
    sides = {"dynamic": graph, "": replace(graph, functions=functions)}
    return _list_sums(sides, lambda side: evaluate_op(side, op, given)[index].stored, like)


def sums_of_piece(graphs: tuple[Graph, Graph], op: Op, index: int, values: Arrays, like: Array) -> list[Sum]:
    """What an operator gives after several that round real data: as they say, and of the data as they are; nothing otherwise.

    Two layers of an LSTM, or a product and its activation, are one piece where the result has nothing that could be compared between them.

    Args:
        graphs: of source and result, which has to compute in float by declaration.
        op: the last operator of the piece.
        index: of its output.
        values: stored values of the source's tensors; whatever they have is not computed again.
        like: what the source gave.
    """
    (graph, other), name = graphs, op.outputs[index]
    piece = computable_ops(graph, {*values, name}, frozenset([name]))
    rounding = [item for item in piece if is_dynamic(item)]
    if like.dtype.kind != "f" or not rounding or not _is_float_declared(graph, other, rounding):
        return []
    fed = tuple({item for part in piece for item in part.inputs} & values.keys())

    def compute(ops: tuple[Op, ...]) -> Array:
        return evaluate(graph.evolve(ops=ops, inputs=fed, outputs=(name,), signatures=(), states={}), values)[name]

    return _list_sums({rounding_of(rounding[0]): tuple(piece), "": _use_float_data(piece)}, compute, like)


def _list_sums(ways: Mapping[str, _Way], compute: Callable[[_Way], Array], like: Array) -> list[Sum]:
    """Return what is computed in each way, with the share of the largest value that it may be off; nothing if one cannot be computed."""
    found = []
    for way, given in ways.items():
        try:
            exact = np.asarray(compute(given), np.float64)
        except (QConvertError, ArithmeticError, AttributeError):
            return []
        if exact.shape != like.shape:
            return []
        largest = float(np.abs(exact).max(initial=0)) or 1.0
        found.append(Sum(way, exact, np.full(exact.shape, allowed_share(like) * largest)))
    return found


def _is_float_declared(graph: Graph, other: Graph, ops: Sequence[Op]) -> bool:
    """Whether the result may compute in float where each of the operators rounds its data."""
    return all("" in declared_roundings(graph, other, item.outputs, rounding_of(item)) for item in ops)


def _has_inner_rounding(graph: Graph, op: Op) -> bool:
    """Whether functions that an operator runs round real data to integers when they run."""
    return any(is_dynamic(inner) for name in called_functions(graph, [op]) for inner in graph.functions[name].ops)


def _use_float_data(ops: Iterable[Op]) -> tuple[Op, ...]:
    """The operators, where they compute with real data as they are."""
    return tuple(op.with_attributes(arithmetic="") if is_dynamic(op) else op for op in ops)
