"""Activations as attributes of operators, and as operators.

fuse_activation: a Relu or Clip becomes the activation of the operator before it, or disappears where the quantization implies it. Exact.

- A Relu or Clip after another with the same quantization, if nobody else reads that: one Clip with the narrower bounds.
  Quantization-aware training leaves several, as each fake quantization has limits of its own.
- Relu, Clip to (0, 6) and Clip to (-1, 1), or to the same integers on the quantization, after an operator that can carry an activation,
  if nobody else reads its result.
- A float Relu or Clip whose readers are all Quantize: if the smallest float value of their quantizations is at least the lower bound, and
  the largest at most the upper one, saturation gives the same integers.

On a quantized result an activation is a limit on stored integers. It is the integer that the bound rounds to, and kernels round to even
or away from zero; where the bound is such a tie, nothing is fused.

decompose_activations: what saturation stands for becomes a Relu or a Clip of its own. Exact.

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
from qconvert.graph.activations import ACTIVATIONS, Bounds, activation_bounds, clip_range
from qconvert.operators import is_dynamic, kind_of
from qconvert.passes.absorb_quantization import fuse_clips
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def fuse_activation(graph: Graph, target: Target | None) -> PassResult:
    """Join limits that follow each other, drop those that the quantizations imply, then fuse the rest."""
    graph, joined = _join(graph)
    graph, dropped = _drop_implied(graph)
    graph, fused = _fuse(graph)
    return graph, (*joined, *fused, *dropped)


def _bounds(graph: Graph, op: Op) -> Bounds | None:
    """Return the range that a Relu or Clip leaves, None on an open side; None if it is not one with constant float bounds."""
    return kind_of(op).limits(op, lambda name: None if graph[name].is_quantized else graph.constant(name))


def _join(graph: Graph) -> PassResult:
    """Make one Clip of two that follow each other."""
    rewriter = Rewriter(graph)
    limits: dict[int, tuple[Bounds, str]] = {}  # what an operator becomes: its bounds, and its data
    for op in rewriter:
        bounds = _bounds(graph, op)
        before = rewriter.producers.get(op.inputs[0]) if bounds is not None else None
        if bounds is None or before is None or not before.inputs or not rewriter.is_read_once(before.name):
            continue
        inner, data = limits.get(id(before), (_bounds(graph, before), before.inputs[0]))
        tensors = [graph[name] for name in (data, before.name, op.name)]
        if inner is None or not all(tensor.shares_quantization(tensors[0]) for tensor in tensors):
            continue
        narrower = _intersect_bounds(inner, bounds)
        if narrower is not None:
            limits[id(op)] = narrower, data
            rewriter.remove(before)
    for op in rewriter:
        if id(op) in limits:
            bounds, data = limits[id(op)]
            rewriter.replace(op, rewriter.clip(data, bounds, op.name, op.source))
    return rewriter.finish_with("{} Relu and Clip operators are merged with the one after them".format, len(limits))


def _intersect_bounds(first: Bounds, second: Bounds) -> Bounds | None:
    """Return the bounds of both; None if no value is within them."""
    lower = max((bound for bound in (first[0], second[0]) if bound is not None), default=None)
    upper = min((bound for bound in (first[1], second[1]) if bound is not None), default=None)
    return None if lower is not None and upper is not None and lower > upper else (lower, upper)


def _drop_implied(graph: Graph) -> PassResult:
    rewriter = Rewriter(graph)
    count = 0
    for op in rewriter:
        bounds = _bounds(graph, op)
        if bounds is None or op.name in graph.public:
            continue
        if {graph[name].dtype for name in (op.inputs[0], op.name)} != {"float32"}:  # or of an opaque operator's unknown type
            continue
        readers = rewriter.readers[op.name]
        if readers and all(kind_of(reader).quantizes and _implies(graph[reader.name], bounds) for reader in readers):
            rewriter.remove(op)
            rewriter.forward(op.name, op.inputs[0])
            rewriter.forget(op.outputs)
            count += 1
    note = "{} Relu and Clip operators are removed, because quantization after them clips to the same range".format
    return rewriter.finish_with(note, count)


def _implies(tensor: Tensor, bounds: Bounds) -> bool:
    """Whether saturation to the quantization limits float values at least as much as `bounds`.

    Quantization is monotone, and a bound outside the quantization quantizes to its end, so the limit before it changes nothing.
    """
    if tensor.quantization is None or "float" in tensor.dtype:
        return False
    lowest, highest = affine_range(tensor.quantization, tensor.dtype)
    lower, upper = bounds
    return (lower is None or bool((lowest >= lower).all())) and (upper is None or bool((highest <= upper).all()))


def _fuse(graph: Graph) -> PassResult:
    """Fuse clips of integers as absorb_quantization does, then those of float values."""
    clipped = fuse_clips(graph)
    rewriter = Rewriter(clipped)
    for op in rewriter:
        bounds = _bounds(clipped, op)
        activation = next((name for name, limits in ACTIVATIONS.items() if name and limits == bounds), "")
        before = rewriter.producers.get(op.inputs[0]) if activation else None
        if before is None or rewriter.is_replaced(before) or not _can_carry(before) or not rewriter.is_read_once(before.name):
            continue
        if not clipped[before.name].is_quantized and not clipped[op.name].is_quantized:
            rewriter.replace(before, replace(before.with_attributes(activation=activation), outputs=op.outputs))
            rewriter.remove(op)
    changed = rewriter.finish()
    count = len(graph.ops) - len(changed.ops)
    return changed, (f"{count} Relu and Clip operators are fused into the operators before them",) if count else ()


def _can_carry(op: Op) -> bool:
    """Whether the operator has room for an activation. One that asks for a kernel's own rounding is left as it is."""
    own_rounding = op.attributes.get("arithmetic") and not is_dynamic(op)
    return kind_of(op).fuses_activation and not op["activation"] and not own_rounding and len(op.outputs) == 1


#: The activations that MNN and others know as operators, by the bounds.
_RELU: Bounds = (0.0, None)


def decompose_activations(graph: Graph, target: Target | None) -> PassResult:
    """Put a Relu or a Clip after every operator of float values whose quantized result has an activation, or a quantization that implies
    one."""
    bounded = target.kernels.decomposed_bounds if target is not None else ()
    rewriter = Rewriter(graph)
    for op in rewriter:
        bounds = _stated_bounds(graph, op, rewriter.readers)
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


def _stated_bounds(graph: Graph, op: Op, readers: Mapping[str, Sequence[Op]]) -> Bounds | None:
    """Return the real range that an operator's activation, or the quantization of its result, leaves; None where neither says anything."""
    if not kind_of(op).fuses_activation or len(op.outputs) != 1:
        return None
    result = graph[op.name]
    bounds, q = activation_bounds(op), result.per_tensor
    is_unlimited = bounds == (None, None) and "int" in result.dtype
    if q is not None and is_unlimited and not kind_of(op).keeps_range and not _is_only_clipped(readers[result.name]):
        lowest, _ = affine_range(q, result.dtype)
        return _RELU if float(lowest.flat[0]) == 0 else None
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
