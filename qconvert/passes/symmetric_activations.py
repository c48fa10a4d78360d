"""symmetric_activations: signed activations get grids with zero point 0, as targets with symmetric kernels want them. Not exact.

The new grid holds the old one's range: scale' = max(highest / 127, lowest / -128) in 8 bits. After a Relu, where the zero point is -128,
steps become twice as large. Biases move to the new scale of the products. Graph inputs and outputs stay as they are, with a Requantize
behind or in front of them. The note says by how much steps grow: each value is off by up to half of a new step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range
from qconvert.graph.kinds import KINDS
from qconvert.passes.costs import activation_cost, tensor_cost
from qconvert.passes.linear import with_biases
from qconvert.passes.store_activations import separated, weight_inputs
from qconvert.passes.stored_types import UNSIGNED, needs_storage, replace_grids
from qconvert.plugins import Change, Cost, Target, at_worst

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Changes the activations of the types in target.symmetric_activations (of all signed types if there is no target)."""
    dtypes = tuple(UNSIGNED) if target is None else target.symmetric_activations
    source, graph = graph, separated(graph, dtypes)
    weights = {op.inputs[i] for op in graph.ops for i in weight_inputs(op) if i < len(op.inputs)}
    outer = _converted_at_once(graph)
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
    result, count = replace_grids(graph, dict(changed), lambda tensor: "symmetric", keeps=_keeps, keep_io=True)
    result = with_biases(result, {*changed, *(result.tensors.keys() - known)}, "symmetric")
    note = f"{count} activations have zero point 0 now; their steps grow {np.mean(growth):.2f} times on average, at most {max(growth):.2f}"
    return result, (Change(f"{note}; {at_worst(costs)}", costs=costs) if costs else Change(note, exact=True),)


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
