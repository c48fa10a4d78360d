"""Carries quantizations on through operators that keep them: data movement, pooling, Relu."""

from __future__ import annotations

from collections.abc import MutableMapping

from qconvert.encodings import QParams
from qconvert.graph import Graph, Op
from qconvert.operators import kind_of

__all__ = ["propagate_quantizations"]


def propagate_quantizations(graph: Graph, quantizations: MutableMapping[str, QParams]) -> list[str]:
    """Gives tensors without a quantization that of their neighbours, until nothing changes; returns their names.

    Forwards, results of operators whose data all have one quantization; backwards, the data of data movement and of Concat, such as the
    result of a layer that is only moved.
    """
    given: list[str] = []
    before = -1
    while before != len(given):
        before = len(given)
        for op in graph.ops:
            given += _propagate_forward(graph, op, quantizations)
        for op in reversed(graph.ops):
            given += _propagate_backward(graph, op, quantizations)
    return given


def _is_float_activation(graph: Graph, name: str) -> bool:
    return graph[name].dtype == "float32" and not graph[name].is_constant


def _propagate_forward(graph: Graph, op: Op, quantizations: MutableMapping[str, QParams]) -> list[str]:
    if not kind_of(op).keeps_range:
        return []
    data = [name for name in kind_of(op).data(op) if _is_float_activation(graph, name)]
    held = [quantizations.get(name) for name in data]
    first = held[0] if held else None
    if first is None or first.quantization.axis is not None or any(item != first for item in held):
        return []
    new = [name for name in kind_of(op).results_of(op) if name and name not in quantizations and _is_float_activation(graph, name)]
    quantizations.update(dict.fromkeys(new, first))
    return new


def _propagate_backward(graph: Graph, op: Op, quantizations: MutableMapping[str, QParams]) -> list[str]:
    if kind_of(op).rule != "move" and not (kind_of(op).chooses and kind_of(op).keeps_range):
        return []
    held = [quantizations.get(name) for name in kind_of(op).results_of(op) if name]
    first = held[0] if held else None
    if first is None or first.quantization.axis is not None or any(item != first for item in held):
        return []
    new = [name for name in dict.fromkeys(kind_of(op).data(op)) if name not in quantizations and _is_float_activation(graph, name)]
    quantizations.update(dict.fromkeys(new, first))
    return new
