"""What several operators of dynamic range compute, where they are judged together: those of functions, and one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from qconvert.checking.attributes import declared_roundings, rounding_of
from qconvert.checking.classify import Sum
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op
from qconvert.operators import is_dynamic, kind_of
from qconvert.operators.functions import called_functions

__all__ = ["sums_of_functions", "sums_of_piece"]

#: By what share of the largest value results may differ; float16 has 11 bits.
_SHARES = {"float16": 2.0**-10}
_SHARE = 1e-5


def sums_of_functions(graph: Graph, op: Op, index: int, values: Mapping[str, Array], like: Array) -> list[Sum]:
    """Return the results of functions that quantize float data at run time: with quantized data, and in float; [] for other functions."""
    inputs = [None if not name else graph.constant(name) if graph[name].is_constant else values.get(name) for name in op.inputs]
    if not _has_inner_rounding(graph, op) or any(name and value is None for name, value in zip(op.inputs, inputs, strict=True)):
        return []
    found = []
    for way, side in (("dynamic", graph), ("", _use_float_data(graph))):
        try:
            exact = np.asarray(evaluate_op(side, op, inputs)[index].stored, np.float64)
        except (QConvertError, ArithmeticError):
            return []
        if exact.shape != like.shape:
            return []
        found.append(_sum(way, exact, like))
    return found


def sums_of_piece(
    graphs: tuple[Graph, Graph], writers: Mapping[str, Op], op: Op, index: int, values: Mapping[str, Array], like: Array
) -> list[Sum]:
    """What an operator gives after several that round real data: as they say, and of the data as they are; nothing otherwise.

    Two layers of an LSTM, or its two ways, are one piece where the result has nothing that could be compared between them.

    Args:
        graphs: of source and result, which has to compute in float by declaration.
        writers: the operator that computes each of the source's tensors.
        op: the last operator of the piece.
        index: of its output.
        values: stored values of the source's tensors; whatever they have is not computed again.
        like: what the source gave.
    """
    graph, other = graphs
    piece = _collect_piece(graph, writers, op, values)
    rounding = [item for item in piece if is_dynamic(item)]
    if like.dtype.kind != "f" or not rounding or not _is_float_declared(graph, other, rounding):
        return []
    real = [item.with_attributes(arithmetic="") if is_dynamic(item) else item for item in piece]
    ways = ((rounding_of(rounding[0]), piece), ("", real))
    found = []
    for way, ops in ways:
        exact = _evaluate_ops(graph, ops, values, op.outputs[index])
        if exact is None or exact.shape != like.shape:
            return []
        found.append(_sum(way, exact, like))
    return found


def _is_float_declared(graph: Graph, other: Graph, ops: Sequence[Op]) -> bool:
    """Whether the result may compute in float where each of the operators rounds it; recurrent ones: sums have bounds of their own."""
    return all(not kind_of(item).sums_products and "" in declared_roundings(graph, other, item.outputs, rounding_of(item)) for item in ops)


def _collect_piece(graph: Graph, writers: Mapping[str, Op], op: Op, values: Mapping[str, Array]) -> list[Op]:
    """The operators from known values to `op`, in the order of the graph; none where something is not known."""
    found: dict[int, Op] = {}
    waiting = [op]
    while waiting:
        item = waiting.pop()
        if id(item) in found:
            continue
        found[id(item)] = item
        for name in item.inputs:
            if not name or graph[name].is_constant or name in values:
                continue
            if name not in writers:
                return []
            waiting.append(writers[name])
    return [item for item in graph.ops if id(item) in found]


def _evaluate_ops(graph: Graph, ops: Sequence[Op], values: Mapping[str, Array], name: str) -> Array | None:
    """A tensor in real numbers, computed by operators from values."""
    known: dict[str, Array] = dict(values)
    for op in ops:
        inputs = [None if not item else graph.constant(item) if graph[item].is_constant else known.get(item) for item in op.inputs]
        try:
            results = evaluate_op(graph, op, inputs)
        except (QConvertError, ArithmeticError, AttributeError):
            return None
        known.update({item: result.stored for item, result in zip(op.outputs, results, strict=True) if item})
    return np.asarray(known[name], np.float64) if ops and name in known else None


def _sum(way: str, exact: Array, like: Array) -> Sum:
    largest = float(np.abs(exact).max(initial=0)) or 1.0
    return Sum(way, exact, np.full(exact.shape, _SHARES.get(like.dtype.name, _SHARE) * largest))


def _has_inner_rounding(graph: Graph, op: Op) -> bool:
    """Whether functions that an operator runs round real data to integers when they run."""
    return any(is_dynamic(inner) for name in called_functions(graph, [op]) for inner in graph.functions[name].ops)


def _use_float_data(graph: Graph) -> Graph:
    """The graph whose functions compute with real data as they are."""
    functions = {
        name: replace(inner, ops=tuple(op.with_attributes(arithmetic="") if is_dynamic(op) else op for op in inner.ops))
        for name, inner in graph.functions.items()
    }
    return replace(graph, functions=functions)
