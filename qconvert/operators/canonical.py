"""The one form of an operator that comparisons know, where formats say the same in several ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.graph.schema import Graph, Op, Tensor

__all__ = ["as_reduction", "with_last_axis", "with_positive_axes", "with_sizes", "without_zero_bias"]


def without_zero_bias(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """A bias of zeros adds nothing."""
    bias = graph.constant(op.inputs[2]) if op.has(2) else None
    return op if bias is None or bias.any() else replace(op, inputs=op.inputs[:2])


def as_reduction(kind: str) -> Callable[[Graph, Op, dict[str, Tensor]], Op]:
    """Global pooling is a reduction of all spatial dimensions."""

    def canonical(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
        rank = graph[op.inputs[0]].rank
        if rank is None:
            return op
        axes = np.arange(2, rank) if op["data_format"] == "channels_first" else np.arange(1, rank - 1)
        return Op(kind, (op.inputs[0], _constant(graph, f"{op.outputs[0]}/axes", axes, tensors)), op.outputs, {"keepdims": 1}, op.source)

    return canonical


def with_positive_axes(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """The axes of a reduction in rising order, counted from the first."""
    rank = graph[op.inputs[0]].rank
    axes = graph.constant(op.inputs[1]) if op.has(1) else None
    if rank is None or axes is None:
        return op
    return replace(op, inputs=(op.inputs[0], _constant(graph, f"{op.outputs[0]}/axes", np.sort(axes % rank), tensors), *op.inputs[2:]))


def with_sizes(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """A Reshape to the sizes that the result has, -1 for one that is known only at run time."""
    shape = graph[op.outputs[0]].shape
    if shape is None or sum(isinstance(size, str) for size in shape) > 1:
        return op
    sizes = np.array([-1 if isinstance(size, str) else size for size in shape])
    return Op("Reshape", (op.inputs[0], _constant(graph, f"{op.outputs[0]}/sizes", sizes, tensors)), op.outputs, {}, op.source)


def with_last_axis(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """The last axis as -1."""
    return op.with_attributes(axis=-1) if op["axis"] + 1 in (0, graph[op.inputs[0]].rank) else op


def _constant(graph: Graph, wanted: str, values: Array, tensors: dict[str, Tensor]) -> str:
    name = graph.names(tensors).fresh(wanted)
    tensors[name] = Tensor(name, "int64", values.shape, values.astype(np.int64))
    return name
