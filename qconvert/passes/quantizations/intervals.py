"""What float values a tensor takes at all: the part of its quantization that an activation, the operators before it, or constants leave.

Intervals go through the graph from its inputs on; each kind of operator says its bounds (operators/bounds.py).
"""

from __future__ import annotations

import math

import numpy as np

from qconvert.arithmetic import affine_range, dequantize, quantize
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS
from qconvert.operators import kind_of
from qconvert.operators.bounds import ANY, Interval, hull

__all__ = ["Interval", "group_tied_tensors", "infer_intervals", "infer_joint_intervals"]


def infer_intervals(graph: Graph) -> dict[str, Interval]:
    """The interval of each tensor's float values; with a quantization of several scales, or none that is known, any value."""
    found = {tensor.name: _tensor_interval(tensor) for tensor in graph.tensors.values()}
    for op in graph.ops:
        for name in kind_of(op).results_of(op):
            if name:
                found[name] = _round_interval(_clip_to_activation(op, kind_of(op).interval(graph, op, found)), graph[name])
    return found


def group_tied_tensors(graph: Graph) -> dict[str, str]:
    """A name that all tensors share which have to have one quantization, since operators move integers between them; for each quantized
    tensor."""
    above: dict[str, str] = {}

    def top(name: str) -> str:
        while above.get(name, name) != name:
            name = above[name]
        return name

    for op in graph.ops:
        if kind_of(op).rule == "move":
            names = [name for name in (*kind_of(op).moved_inputs(op), *kind_of(op).results_of(op)) if name and graph[name].is_quantized]
            above.update({top(name): top(names[0]) for name in names})
    return {tensor.name: top(tensor.name) for tensor in graph.tensors.values() if tensor.is_quantized}


def infer_joint_intervals(graph: Graph) -> dict[str, Interval]:
    """The interval of each quantized tensor, with those that are tied to it."""
    found, top = infer_intervals(graph), group_tied_tensors(graph)
    groups: dict[str, Interval] = {}
    for name, head in top.items():
        groups[head] = hull([groups.get(head, found[name]), found[name]])
    return {name: groups[head] for name, head in top.items()}


def _tensor_interval(tensor: Tensor) -> Interval:
    """Of a constant its values, of what nothing computes its quantization."""
    q = tensor.quantization
    if q is not None and "float" in tensor.dtype:
        return ANY
    if tensor.data is not None and tensor.data.size and tensor.data.dtype.kind in "fiu":
        real = dequantize(tensor.data, q) if q is not None else tensor.data.astype(np.float64)
        return (float(real.min()), float(real.max())) if np.isfinite(real).all() else ANY
    if q is None:
        return ANY
    low, high = affine_range(q, tensor.dtype)
    return float(low.min()), float(high.max())


def _clip_to_activation(op: Op, interval: Interval) -> Interval:
    lower, upper = ACTIVATIONS[str(op.attributes.get("activation", ""))]
    low, high = (-math.inf if lower is None else lower), (math.inf if upper is None else upper)
    return min(max(interval[0], low), high), min(max(interval[1], low), high)


def _round_interval(interval: Interval, tensor: Tensor) -> Interval:
    """The values of a quantization that float values of an interval are rounded to."""
    q = tensor.quantization
    if q is None or "float" in tensor.dtype:
        return interval if q is None else ANY
    if not q.is_per_tensor:
        return _tensor_interval(tensor)
    low, high = dequantize(quantize(np.array(interval), q, tensor.dtype), q)
    return float(low), float(high)
