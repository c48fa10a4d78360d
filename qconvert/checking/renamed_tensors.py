"""Tensors of the source that the result has under other names: the search for them, and both sides under the source's names.

A result of qconvert has nearly all tensors under the source's names, and others have few. What is left is searched by the operators that
read it, and by the values of a run. Any pair is sound: what the result computes there is compared with the source's values, and what
reads it is fed with these. So a pair need only be likely; a wrong one cannot hide a fault, but would name one where none is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from qconvert.checking.exchanged_values import Form, to_float
from qconvert.checking.file_in_runtime import Side
from qconvert.checking.same_codes import stored_offset
from qconvert.graph import Array, Arrays, Graph, Op
from qconvert.graph.metadata import DYNAMIC_RANGE, read_entries
from qconvert.operators import kind_of
from qconvert.plugins import Inside, Pieces
from qconvert.rewriting.parts import trace_back
from qconvert.rules.changed_values import list_axis_orders, paired_inputs

_Value = TypeVar("_Value")

#: The difference of two tensors that stand for each other is at most this share of them, as root mean squares: 20 dB.
_LARGEST_SHARE = 0.1


def match_tensors(graph: Graph, other: Graph, declared: Collection[str]) -> dict[str, str]:
    """Activations of `graph` that `other` has under another name, and that name: what the same operators read, one after the other.

    Args:
        graph, other: the canonical graphs of source and result.
        declared: names of tensors of `other` whose quantizations the conversion declared to be others.
    """
    found: dict[str, str] = {}
    while True:
        new = {
            name: own
            for name, own in _match_next(graph, _rename_in_graph(other, found))
            if own in declared or stored_offset(graph[name], other[own]) is not None
        }
        if not new:
            return found
        found.update({name: own for own, name in {own: name for name, own in new.items()}.items()})


def _match_next(graph: Graph, other: Graph) -> Iterator[tuple[str, str]]:
    """What operators read that compute a tensor of one name in both graphs, the last first; and what is moved to become that."""
    direct = {a.name: b.name for _, a, b in paired_inputs(graph, other) if not (a.is_constant or b.is_constant)}
    direct = {**dict(_match_product_data(graph, other)), **direct}
    taken = {*graph.tensors, *other.inputs, *other.outputs}
    stands: dict[str, str] = {}
    for op in reversed(graph.ops):
        kind = kind_of(op)
        moved = op.inputs[:1] if kind.keeps_elements else ()
        for name in filter(None, op.inputs):
            own = direct.get(name, stands.get(op.outputs[0], "") if name in moved else "")
            if own and own not in taken and name not in other.tensors and name not in stands:
                stands[name] = own
                yield name, own


def _is_part(op: Op) -> bool:
    """Whether a product of the result may have the operator in itself: a bias, or limits."""
    return kind_of(op).sum_sign > 0 or kind_of(op).clips


def _match_product_data(graph: Graph, other: Graph) -> Iterator[tuple[str, str]]:
    """The data of products whose bias, or limit, is an operator of its own in the source and a part of the product in the result."""
    writers, others = graph.producers(), other.producers()
    for op in graph.ops:
        if not (_is_part(op) and op.outputs):
            continue
        pair = others.get(trace_back(others, op.outputs[0], lambda it: kind_of(it).keeps_order and it.inputs[0] not in graph.tensors))
        before: Op | None = op
        while before is not None and _is_part(before):
            computed = [name for name in before.inputs if name and not graph[name].is_constant]
            before = writers.get(computed[0]) if len(computed) == 1 else None
        if pair is None or before is None or not (kind_of(pair).has_weights and kind_of(before).sums_products):
            continue
        name, own = before.inputs[0], pair.inputs[0]
        if name != own and not (graph[name].is_constant or other[own].is_constant):
            yield name, own


def find_forms(graph: Graph, other: Graph, names: Mapping[str, str], values: Arrays, found: Arrays) -> dict[str, Form]:
    """How the result holds those of `names` (of the source: of the result) that have the source's values in some order; the others are left
    out.

    Args:
        graph, other: the canonical graphs of source and result.
        names: see match_tensors().
        values, found: stored values of one run, of the source and of the result.
    """
    forms = {}
    for name, own in names.items():
        if name in values and own in found and values[name].size == found[own].size:
            form = _find_form(to_float(graph[name], values[name]), to_float(other[own], found[own]))
            if form is not None:
                forms[name] = form
    return forms


def _find_form(value: Array, found: Array) -> Form | None:
    """The order of axes in which both are nearest to each other, if they are near then."""
    with np.errstate(all="ignore"):
        best = min(_list_orders(value, found), key=lambda order: _squared_distance(value.transpose(order), found), default=None)
        limit = _LARGEST_SHARE**2 * float(np.square(value).sum())
        if best is None or not _squared_distance(value.transpose(best), found) <= limit:
            return None
    return Form(best, found.shape)


def _squared_distance(value: Array, found: Array) -> float:
    off = float(np.square(value.reshape(found.shape) - found).sum())
    return off if np.isfinite(off) else float("inf")


def _list_orders(value: Array, found: Array) -> Iterator[tuple[int, ...]]:
    """The axes as they stand, and in each order that has the sizes of `found`, axes of one element apart."""
    yield tuple(range(value.ndim))
    single = tuple(axis for axis, size in enumerate(value.shape) if size == 1)
    yield from ((*single, *order) for order in list_axis_orders(value.shape, found.shape) if order != tuple(sorted(order)))


def rename_tensors(side: Side, inside: Inside | None, names: Mapping[str, str]) -> tuple[Side, Inside | None]:
    """The side, and the inside of its file, with tensors called as in the source; `names` are of the source: of the file."""
    if not names:
        return side, inside
    return side.use_renamed_graph(_rename_in_graph(side.graph, names), names), None if inside is None else _Renamed(inside, names)


def _rename_in_graph(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with tensors called otherwise, new name: old one."""
    if not names:
        return graph
    new = {old: name for name, old in names.items()}
    metadata = dict(graph.metadata)
    if DYNAMIC_RANGE in metadata:
        metadata[DYNAMIC_RANGE] = json.dumps({new.get(name, name): item for name, item in read_entries(metadata, DYNAMIC_RANGE).items()})
    return replace(graph.with_names(new), metadata=metadata)


class _Renamed:
    """The inside of a file whose tensors are called otherwise; see plugins.Inside.

    Args:
        inside: with the file's own names.
        names: new name: the file's.
    """

    def __init__(self, inside: Inside, names: Mapping[str, str]) -> None:
        self._inside, self._old, self._new = inside, names, {old: name for name, old in names.items()}
        self.cuts = inside.cuts
        self.names = frozenset(self._map_names(inside.names))

    def _map_names(self, names: Iterable[str]) -> list[str]:
        return [self._new.get(name, name) for name in names]

    def _map_keys(self, values: Mapping[str, _Value]) -> dict[str, _Value]:
        return {self._new.get(name, name): value for name, value in values.items()}

    def values(self, feed: Arrays) -> dict[str, Array]:
        return self._map_keys(self._inside.values(feed))

    def pieces(self, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        own = [frozenset(self._old.get(name, name) for name in group) for group in (names, wanted)]
        found = self._inside.pieces(own[0], own[1])

        def run(values: Arrays) -> dict[str, Array]:
            return self._map_keys(found.run({self._old.get(name, name): value for name, value in values.items()}))

        computed = frozenset(self._map_names(found.computed))
        return Pieces(tuple(self._map_names(found.fed)), computed, self._map_keys(found.dtypes), self._map_keys(found.shapes), run)
