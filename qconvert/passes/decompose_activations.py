"""decompose_activations: what saturation stands for becomes a Relu or a Clip of its own. Exact.

An activation that a quantization implies is no operator, and a fused one is an attribute: both are lost for a program that gets float
values and scales next to them. So where the quantization of a result begins at real zero, or its operator has an activation, a Relu or a
Clip stands after it, with the same quantization. The operator's result gets another name; what the operator computed keeps its own, after
the activation.

Kinds that the target does not fuse activations into (decomposed_bounds) get a Clip up to the largest value of the quantization, which no
runtime takes for a Relu. So does an operator whose upper bound lies within its quantization: integer kernels that fuse a Relu6 may know its
lower bound alone (MNN's).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import affine_range
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import Bounds, activation_bounds, clip_range
from qconvert.operators import kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

#: The activations that MNN and others know as operators, by the bounds.
_RELU: Bounds = (0.0, None)


def run(graph: Graph, target: Target | None) -> PassResult:
    """Put a Relu or a Clip after every operator of float values whose quantized result has an activation, or a quantization that implies
    one."""
    bounded = target.kernels.decomposed_bounds if target is not None else ()
    rewriter = Rewriter(graph)
    for op in rewriter:
        bounds = _bounds(graph, op, rewriter.readers)
        if bounds is None:
            continue
        result = graph[op.name]
        bounds = _round_bounds(result, bounds) if op.kind in bounded or _is_upper_bound_needed(result, bounds) else bounds
        inner = rewriter.add(f"{result.name}/unlimited", result)
        bare = op.with_attributes(activation="") if op.attributes.get("activation") else op
        if bounds == _RELU:
            limited = op.derive("Relu", (inner,), (result.name,))
        else:
            limited = rewriter.clip(inner, bounds, result.name, op.source)
        rewriter.replace(op, replace(bare, outputs=(inner,)), limited)
    return rewriter.finish_with("{} fused and implied activations are operators".format)


def _bounds(graph: Graph, op: Op, readers: Mapping[str, Sequence[Op]]) -> Bounds | None:
    """Return the real range that an operator's activation, or the quantization of its result, leaves; None where neither says anything."""
    if not kind_of(op).fuses_activation or len(op.outputs) != 1:
        return None
    result = graph[op.name]
    bounds, q = activation_bounds(op), result.per_tensor
    is_unlimited = bounds == (None, None) and "int" in result.dtype
    if q is not None and is_unlimited and not kind_of(op).keeps_range and not _is_only_clipped(readers[result.name]):
        lowest, _ = affine_range(q, result.dtype)
        return _RELU if float(lowest.reshape(-1)[0]) == 0 else None
    return bounds if op["activation"] else None


def _is_only_clipped(readers: Sequence[Op]) -> bool:
    """Whether nothing but a Relu or a Clip reads it: the model writes it itself."""
    return bool(readers) and all(kind_of(op).clips for op in readers)


def _is_upper_bound_needed(result: Tensor, bounds: Bounds) -> bool:
    """Whether an upper bound is below the quantization's largest value, where saturation does not stand for it."""
    q = result.per_tensor
    return q is not None and clip_range(result, bounds)[1] < q.limits(result.dtype)[1]


def _round_bounds(result: Tensor, bounds: Bounds) -> Bounds:
    """Return the bounds as two stored integers stand for them. An upper bound of exactly 6 would be a Relu6 to a runtime, which the next
    number is not."""
    q = result.per_tensor
    if q is None:
        return bounds
    low, high = (np.float32((code - q.point) * q.step) for code in clip_range(result, bounds))
    return float(low), float(np.nextafter(high, np.float32(np.inf)) if high == 6 else high)
