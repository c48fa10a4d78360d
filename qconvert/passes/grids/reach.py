"""What real values a tensor takes at all: the part of its grid that an activation, the operators before it, or constants leave.

Intervals go through the graph from its inputs on. An operator that is not known here may give any value of its result's grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from qconvert.arithmetic import affine_range, dequantize, quantize
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS
from qconvert.operators import KINDS

__all__ = ["Interval", "hulls", "reached", "tied"]

#: Smallest and largest real value, both included.
Interval = tuple[float, float]

_ANY: Interval = (-math.inf, math.inf)
_FIXED: Mapping[str, Interval] = {
    **dict.fromkeys(("Sigmoid", "Softmax", "HardSigmoid"), (0.0, 1.0)),
    "Tanh": (-1.0, 1.0),
    **dict.fromkeys(("Relu", "Abs", "Sqrt", "Exp"), (0.0, math.inf)),
}
#: Kinds whose results lie between the smallest and the largest of their data, and zero where they may pad.
_WITHIN = ("Relu", "Clip", "AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceMax", "ReduceMin", "Max", "Min", "Where", "Identity",
           "Quantize", "Dequantize", "Requantize", "MaxPool", "GlobalMaxPool")  # fmt: skip


def reached(graph: Graph) -> dict[str, Interval]:
    """The interval of each tensor's real values; on a grid of several scales, or none that is known, any value."""
    found = {tensor.name: _given(tensor) for tensor in graph.tensors.values()}
    for op in graph.ops:
        for name in KINDS[op.kind].results_of(op):
            if name:
                found[name] = _rounded(_activated(op, _computed(graph, op, found)), graph[name])
    return found


def tied(graph: Graph) -> dict[str, str]:
    """A name that all tensors share which have to be on one grid, since operators move integers between them; for each quantized tensor."""
    above: dict[str, str] = {}

    def top(name: str) -> str:
        while above.get(name, name) != name:
            name = above[name]
        return name

    for op in graph.ops:
        if KINDS[op.kind].rule == "move":
            names = [name for name in (*KINDS[op.kind].moved(op), *KINDS[op.kind].results_of(op)) if name and graph[name].is_quantized]
            above.update({top(name): top(names[0]) for name in names})
    return {tensor.name: top(tensor.name) for tensor in graph.tensors.values() if tensor.is_quantized}


def hulls(graph: Graph) -> dict[str, Interval]:
    """The interval of each quantized tensor, with those that are tied to it."""
    found, top = reached(graph), tied(graph)
    groups: dict[str, Interval] = {}
    for name, head in top.items():
        groups[head] = _hull([groups.get(head, found[name]), found[name]])
    return {name: groups[head] for name, head in top.items()}


def _given(tensor: Tensor) -> Interval:
    """Of a constant its values, of what nothing computes its grid."""
    q = tensor.quantization
    if q is not None and "float" in tensor.dtype:
        return _ANY
    if tensor.data is not None and tensor.data.size and tensor.data.dtype.kind in "fiu":
        real = dequantize(tensor.data, q) if q is not None else tensor.data.astype(np.float64)
        return (float(real.min()), float(real.max())) if np.isfinite(real).all() else _ANY
    if q is None:
        return _ANY
    low, high = affine_range(q, tensor.dtype)
    return float(low.min()), float(high.max())


def _computed(graph: Graph, op: Op, found: Mapping[str, Interval]) -> Interval:
    """What an operator gives as a real-valued function, before its activation."""
    kind = KINDS[op.kind]
    if op.kind in _FIXED and op.kind != "Relu":
        return _FIXED[op.kind]
    data = [found[name] for name in kind.moved(op)]
    if kind.rule == "move" and op.attributes.get("reduction", "none") == "none":
        return _hull([*data, *([(0.0, 0.0)] if op.kind == "Pad" else [])])
    if op.kind in _WITHIN:
        whole = _hull([*data, *([(0.0, 0.0)] if "Pool" in op.kind else [])])
        return _clipped(op, whole, found)
    if op.kind in _SUMS:
        return _SUMS[op.kind](*data[:2])
    if kind.has_weights:
        return _summed(graph, op, found)
    return _ANY


def _clipped(op: Op, whole: Interval, found: Mapping[str, Interval]) -> Interval:
    if op.kind == "Relu":
        return max(whole[0], 0.0), max(whole[1], 0.0)
    if op.kind != "Clip":
        return whole
    floor = found[op.inputs[1]][0] if op.has(1) else -math.inf
    ceiling = found[op.inputs[2]][1] if op.has(2) else math.inf
    return min(max(whole[0], floor), ceiling), min(max(whole[1], floor), ceiling)


def _product(a: Interval, b: Interval) -> Interval:
    ends = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)


_SUMS: Mapping[str, Callable[[Interval, Interval], Interval]] = {
    "Add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "Mul": _product,
}


def _summed(graph: Graph, op: Op, found: Mapping[str, Interval]) -> Interval:
    """The bounds of a sum of products with constant weights; padding gives zeros."""
    weights, (low, high) = graph[op.inputs[1]], _hull([found[op.inputs[0]], (0.0, 0.0)])
    bias = graph[op.inputs[2]] if op.has(2) else None
    if weights.data is None or not math.isfinite(low) or not math.isfinite(high) or op.kind == "ConvTranspose" or "float" in weights.dtype:
        return _ANY
    if weights.quantization is None or weights.quantization.block_size or (bias is not None and bias.data is None) or not weights.data.size:
        return _ANY
    real = dequantize(weights.data, weights.quantization).reshape(len(weights.data), -1)
    positive, negative = np.maximum(real, 0).sum(1), np.minimum(real, 0).sum(1)
    added = 0.0 if bias is None else _real(bias).reshape(-1)
    least, most = positive * low + negative * high + added, positive * high + negative * low + added
    return float(least.min()), float(most.max())


def _real(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    assert tensor.data is not None
    return tensor.data.astype(np.float64) if tensor.quantization is None else dequantize(tensor.data, tensor.quantization)


def _activated(op: Op, interval: Interval) -> Interval:
    lower, upper = ACTIVATIONS[str(op.attributes.get("activation", ""))]
    low, high = (-math.inf if lower is None else lower), (math.inf if upper is None else upper)
    return min(max(interval[0], low), high), min(max(interval[1], low), high)


def _rounded(interval: Interval, tensor: Tensor) -> Interval:
    """The values of a grid that real values of an interval are rounded to."""
    q = tensor.quantization
    if q is None or "float" in tensor.dtype:
        return interval if q is None else _ANY
    if not q.is_per_tensor:
        return _given(tensor)
    low, high = dequantize(quantize(np.array(interval), q, tensor.dtype), q)
    return float(low), float(high)


def _hull(intervals: Iterable[Interval]) -> Interval:
    found = list(intervals)
    return (min(low for low, _ in found), max(high for _, high in found)) if found else _ANY
