"""symmetric_activations: signed activations get grids with zero point 0, as targets with symmetric kernels want them. Not exact.

The new grid holds the old one's range: scale' = max(highest / 127, lowest / -128) in 8 bits. After a Relu, where the zero point is -128,
steps become twice as large. What saturated at an end of the old range still does: by an activation, or a Clip where none says it; after a
Relu that the old grid implied, this is the Relu. Biases move to the new scale of the products. Graph inputs and outputs stay as they are,
with a Requantize behind or in front of them, if the target leaves them free; else they change too, and the note names them. It says by how
much steps grow: each value is off by up to half of a new step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range
from qconvert.graph.kinds import KINDS
from qconvert.passes.absorb.clips import fuse_clips
from qconvert.passes.costs import activation_cost, tensor_cost
from qconvert.passes.linear import with_biases
from qconvert.passes.store_activations import changed_edges, separated, weight_inputs
from qconvert.passes.stored_types import UNSIGNED, needs_storage, replace_grids
from qconvert.plugins import Change, Cost, Target, at_worst

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Changes the activations of the types in target.symmetric_activations (of all signed types if there is no target)."""
    dtypes = tuple(UNSIGNED) if target is None else target.symmetric_activations
    source, graph = graph, separated(graph, dtypes)
    weights = {op.inputs[i] for op in graph.ops for i in weight_inputs(op) if i < len(op.inputs)}
    free = target is None or target.free_edges
    outer = _converted_at_once(graph) if free else set()
    old = [
        tensor
        for tensor in graph.tensors.values()
        if tensor.dtype in dtypes
        and tensor.quantization is not None
        and not tensor.quantization.is_symmetric
        and tensor.name not in outer
        and not (tensor.is_constant and tensor.name in weights)
    ]
    if not old:
        return source, ()
    changed = {tensor.name: _symmetric(tensor) for tensor in old}
    growth = [float((_scale(changed[tensor.name]) / _scale(tensor)).max()) for tensor in old]
    costs = tuple(cost for tensor in old if (cost := _cost(tensor, changed[tensor.name])) is not None)
    known = set(graph.tensors)
    result, count = replace_grids(graph, dict(changed), lambda tensor: "symmetric", keeps=_keeps, keep_io=free)
    result = with_biases(result, {*changed, *(result.tensors.keys() - known)}, "symmetric")
    result, clips = _saturated(result, {tensor.name: tensor for tensor in old})
    clipped = f", {clips} of them clipped to the range they had" if clips else ""
    grown = f"their steps grow {np.mean(growth):.2f} times on average, at most {max(growth):.2f}"
    note = f"{count} activations have zero point 0 now{changed_edges(graph, result)}{clipped}; {grown}"
    return result, (Change(f"{note}; {at_worst(costs)}", costs=costs) if costs else Change(note, exact=True),)


def _saturated(graph: Graph, old: Mapping[str, Tensor]) -> tuple[Graph, int]:
    """Clips what operators round onto the new grids to the ranges of the old ones; gives the number of clipped tensors too."""
    tensors: dict[str, Tensor] = {}
    names = graph.names(tensors)
    ops: list[Op] = []
    clips = 0
    for op in graph.ops:
        name = op.outputs[0] if len(op.outputs) == 1 else ""
        bounds = _lost_bounds(old[name], graph[name]) if name in old and KINDS[op.kind].rounds else (None, None)
        if bounds == (None, None):
            ops.append(op)
            continue
        clips += 1
        whole = names.fresh(f"{name}/whole")
        tensors[whole] = replace(graph[name], name=whole)
        limits = []
        for word, bound in zip(("lowest", "highest"), bounds, strict=True):
            limits.append("" if bound is None else names.fresh(f"{name}/{word}"))
            if bound is not None:
                tensors[limits[-1]] = Tensor(limits[-1], "float32", (), np.array(bound, np.float32))
        ops += [replace(op, outputs=(whole,)), Op("Clip", (whole, *limits), (name,), {}, op.source)]
    return (fuse_clips(graph.evolve(tensors=tensors.values(), ops=ops)), clips) if clips else (graph, 0)


def _lost_bounds(old: Tensor, new: Tensor) -> tuple[np.float32 | None, np.float32 | None]:
    """The ends of the old range that the new grid goes beyond by more than a step, as values of the new grid."""
    before, after = old.quantization, new.quantization
    if before is None or after is None or not after.is_per_tensor or old.dtype != new.dtype or after == before:
        return None, None
    limits, ends = after.limits(new.dtype), quantize(dequantize(np.array(before.limits(old.dtype)), before), after, new.dtype)
    kept = [None if abs(int(end) - limit) <= 1 else np.float32(int(end)) * after.scale[0] for end, limit in zip(ends, limits, strict=True)]
    return kept[0], kept[1]


def _cost(old: Tensor, new: Tensor) -> Cost | None:
    """Of a constant by value, of an activation over its codes."""
    assert old.quantization is not None and new.quantization is not None
    if old.is_constant:
        return tensor_cost(old, new)
    return activation_cost(old.name, old.quantization, old.dtype, new.quantization)


def _converted_at_once(graph: Graph) -> set[str]:
    """Graph inputs and outputs that only conversions touch: these read and write any grid."""
    found = {*graph.inputs, *graph.outputs}
    for op in graph.ops:
        if KINDS[op.kind].rule != "convert":
            found.difference_update(op.inputs, op.outputs)
    return found


def _keeps(graph: Graph, op: Op) -> bool:
    """Whether the stored integers themselves matter to an operator; how an average rounds ties has no meaning on another grid."""
    return KINDS[op.kind].rule == "relabel" or (op.kind != "AveragePool" and needs_storage(graph, op))


def _scale(tensor: Tensor) -> Array:
    assert tensor.quantization is not None
    return tensor.quantization.scale


def _symmetric(tensor: Tensor) -> Tensor:
    """The tensor on the finest symmetric grid that holds its range."""
    q = tensor.quantization
    assert q is not None
    (low, high), (lowest, highest) = integer_range(tensor.dtype), q.limits(tensor.dtype)
    steps = np.maximum((highest - q.zero_point) / high, (lowest - q.zero_point) / low)
    grid = Quantization((q.scale * steps).astype(np.float32), np.zeros_like(q.zero_point), q.axis, q.block_size)
    if (lowest, highest) != (low, high) and q.is_per_tensor:  # what saturated early still does
        ends = quantize(dequantize(np.array([lowest, highest]), q), grid, tensor.dtype)
        grid = replace(grid, quant_min=int(ends[0]), quant_max=int(ends[1]))
    data = None if tensor.data is None else quantize(dequantize(tensor.data, q), grid, tensor.dtype)
    return replace(tensor, data=data, quantization=grid)
