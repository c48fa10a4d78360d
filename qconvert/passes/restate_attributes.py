"""restate_attributes: what the source's format cannot state, as an earlier conversion noted it in the metadata. Exact.

Padding that stands before its operator because the format could not state it there; a fused activation that the quantization implies, or
how ties of an average are rounded; limits of a constant's integers. Notes are used only if the operator computes the same otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.errors import format_count, format_verb
from qconvert.graph import Graph, Op, Tensor, drop_keys, integer_range
from qconvert.graph.activations import ACTIVATIONS, activation_bounds, clip_range
from qconvert.graph.metadata import FUSED_PADDING, STATED_ATTRIBUTES, STATED_LIMITS, read_entries, read_names
from qconvert.kernels.torch_forms import adds_as_litert
from qconvert.operators import kind_of
from qconvert.passes.pads_and_dilations import fuse_pads
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

#: Types whose constants may use a part of their range.
_LIMITED = ("int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16")


def restate_attributes(graph: Graph, target: Target | None) -> PassResult:
    """Give what the metadata entries say to its operators and constants, and take the entries away."""
    graph, fused = _restore_padding(graph)
    graph, stated = _restore_attributes(graph)
    graph, limited = _restore_limits(graph)
    return graph, (*fused, *stated, *limited)


def _restore_padding(graph: Graph) -> PassResult:
    """Turn Pads that a writer put before operators into these operators' own padding again."""
    if FUSED_PADDING not in graph.metadata:
        return graph, ()
    noted = read_names(graph.metadata, FUSED_PADDING)
    return fuse_pads(graph.evolve(metadata=drop_keys(graph.metadata, FUSED_PADDING)), lambda op: op.name in noted)


def _restore_attributes(graph: Graph) -> PassResult:
    graph, stated = _pop_metadata(graph, STATED_ATTRIBUTES)
    rewriter = Rewriter(graph)
    for op in rewriter:
        new = _restore_op_attributes(graph, op, stated.get(op.name)) if op.outputs else op
        if new is not op:
            rewriter.replace(op, new)
    return rewriter.finish_with(
        lambda count: f"{format_count(count, 'attribute')} of operators {format_verb(count, 'are')} restored from the file's metadata"
    )


def _pop_metadata(graph: Graph, key: str) -> tuple[Graph, Mapping[str, Any]]:
    """Return the graph without an entry of its metadata, and what that entry says; nothing where it is no map.

    The model does not depend on it: a damaged entry is no reason to refuse the file.
    """
    if key not in graph.metadata:
        return graph, {}
    return replace(graph, metadata=drop_keys(graph.metadata, key)), read_entries(graph.metadata, key)


def _restore_op_attributes(graph: Graph, op: Op, stated: Any) -> Op:
    if not isinstance(stated, dict):
        return op
    result, activation, arithmetic = graph[op.name], stated.get("activation"), stated.get("arithmetic")
    kind = kind_of(op)
    if kind.averages and kind.has_windows and not op["arithmetic"] and arithmetic in ("ties_up", "ties_away"):
        op = op.with_attributes(arithmetic=arithmetic)
    if kind.sum_sign > 0 and not op["arithmetic"] and graph.is_from("tflite") and adds_as_litert(graph, op, str(arithmetic)):
        op = op.with_attributes(arithmetic=str(arithmetic))
    known = isinstance(activation, str) and activation in ACTIVATIONS and "activation" in kind.attributes
    if not activation or not known or not result.is_quantized:
        return op
    same = clip_range(result, ACTIVATIONS[activation]) == clip_range(result, activation_bounds(op))
    return op.with_attributes(activation=activation) if same else op


def _restore_limits(graph: Graph) -> PassResult:
    """Let constants whose integers are within the limits noted use these alone; what the file says itself, and what is computed, stays."""
    graph, stated = _pop_metadata(graph, STATED_LIMITS)
    rewriter = Rewriter(graph)
    found = [_narrow_to_limits(graph[name], limits) for name, limits in stated.items() if name in graph]
    count = len([rewriter.define(tensor) for tensor in found if tensor is not None])
    return rewriter.finish_with(
        lambda count: f"{format_count(count, 'constant', 'use')} a part of their type's range, as the file's metadata state", count
    )


def _narrow_to_limits(tensor: Tensor, limits: Any) -> Tensor | None:
    """Return a constant with the limits of its integers; None where these are none of it."""
    quantization, data = tensor.quantization, tensor.data
    if (
        quantization is None
        or data is None
        or tensor.dtype not in _LIMITED
        or (quantization.quant_min, quantization.quant_max) != (None, None)
    ):
        return None
    if not (isinstance(limits, list) and len(limits) == 2 and all(limit is None or type(limit) is int for limit in limits)):
        return None
    narrow = replace(quantization, quant_min=limits[0], quant_max=limits[1])
    (lowest, highest), (low, high) = integer_range(tensor.dtype), narrow.limits(tensor.dtype)
    values = data.astype(np.int64)
    fits = lowest <= low < high <= highest and (not values.size or low <= int(values.min()) <= int(values.max()) <= high)
    return replace(tensor, quantization=narrow) if fits and (low, high) != (lowest, highest) else None
