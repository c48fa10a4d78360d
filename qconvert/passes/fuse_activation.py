"""fuse_activation: a Relu or Clip becomes the activation of the operator before it, or disappears where the quantization implies it. Exact.

- A Relu or Clip after another with the same quantization, if nobody else reads that: one Clip with the narrower bounds.
  Quantization-aware training leaves several, as each fake quantization has limits of its own.
- Relu, Clip to (0, 6) and Clip to (-1, 1), or to the same integers on the quantization, after an operator that can carry an activation,
  if nobody else reads its result.
- A float Relu or Clip whose readers are all Quantize: if the smallest float value of their quantizations is at least the lower bound, and
  the largest at most the upper one, saturation gives the same integers.

On a quantized result an activation is a limit on stored integers. It is the integer that the bound rounds to, and kernels round to even
or away from zero; where the bound is such a tie, nothing is fused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import affine_range, round_half_away
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS, Bounds, clip_range
from qconvert.operators import is_dynamic, kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
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
    rewriter = Rewriter(graph)
    for op in rewriter:
        bounds = _bounds(graph, op)
        activation = _find_activation(bounds, graph[op.name]) if bounds is not None else ""
        before = rewriter.producers.get(op.inputs[0]) if activation else None
        if before is None or rewriter.is_replaced(before) or not _can_carry(before) or not rewriter.is_read_once(before.name):
            continue
        if _stays_equal(graph[op.inputs[0]], graph[op.name], ACTIVATIONS[activation]):
            rewriter.replace(before, replace(before.with_attributes(activation=activation), outputs=op.outputs))
            rewriter.remove(op)
    return rewriter.finish_with("{} Relu and Clip operators are fused into the operators before them".format)


def _find_activation(bounds: Bounds, tensor: Tensor) -> str:
    """Return the activation with these bounds, or with the same integers on the tensor's quantization; "" if there is none."""
    for name, limits in ACTIVATIONS.items():
        if name and (limits == bounds or (tensor.per_tensor is not None and clip_range(tensor, limits) == clip_range(tensor, bounds))):
            return name
    return ""


def _can_carry(op: Op) -> bool:
    """Whether the operator has room for an activation. One that asks for a kernel's own rounding is left as it is."""
    own_rounding = op.attributes.get("arithmetic") and not is_dynamic(op)
    return kind_of(op).fuses_activation and not op["activation"] and not own_rounding and len(op.outputs) == 1


def _stays_equal(inner: Tensor, result: Tensor, bounds: Bounds) -> bool:
    """Whether limiting what the operator gives is limiting what it stores."""
    if not inner.shares_quantization(result):
        return False
    q = inner.quantization
    return q is None or (q.is_per_tensor and all(bound is None or _is_unambiguous(bound, q.scale[0]) for bound in bounds))


def _is_unambiguous(bound: float, scale: np.float32) -> bool:
    """Whether every kernel rounds the bound to the same integer: to even or away from zero, in float32 or float64."""
    single, double = np.float32(bound) / scale, np.float64(bound) / np.float64(scale)
    rounded = {float(np.rint(single)), float(np.rint(double)), float(round_half_away(single)), float(round_half_away(double))}
    return len(rounded) == 1
