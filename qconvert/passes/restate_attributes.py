"""restate_attributes: attributes that the source's format cannot state, as an earlier conversion noted them in the metadata. Exact.

Padding that stands before its operator because the format could not state it there; a fused activation that the grid implies, or how
ties of an average are rounded: only notes that change nothing of what an operator computes beyond that are believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.graph import Graph, Op
from qconvert.graph.activations import ACTIVATIONS, clip_range
from qconvert.graph.kinds import KINDS
from qconvert.graph.metadata import FUSED_PADDING, STATED_ATTRIBUTES
from qconvert.passes.fuse_pad import fuse_pads
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Gives the attributes in the metadata entries to their operators, and takes the entries away."""
    graph, fused = _with_own_padding(graph)
    graph, stated = _with_stated_attributes(graph)
    return graph, (*fused, *stated)


def _with_own_padding(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Pads that a writer put before operators become these operators' own padding again."""
    text = graph.metadata.get(FUSED_PADDING)
    if text is None:
        return graph, ()
    try:
        noted = {str(name) for name in json.loads(text)}
    except (ValueError, TypeError) as error:
        raise InvalidModelError(f"the metadata entry {FUSED_PADDING} is no list of names") from error
    metadata = {key: value for key, value in graph.metadata.items() if key != FUSED_PADDING}
    return fuse_pads(graph.evolve(metadata=metadata), lambda op: op.outputs[0] in noted)


def _with_stated_attributes(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    text = graph.metadata.get(STATED_ATTRIBUTES)
    if text is None:
        return graph, ()
    try:
        stated = {str(name): dict(values) for name, values in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidModelError(f"the metadata entry {STATED_ATTRIBUTES} is no map of names to attributes") from error
    ops = [_with_stated(graph, op, stated.get(op.outputs[0], {})) if op.outputs else op for op in graph.ops]
    changed = sum(new is not old for new, old in zip(ops, graph.ops, strict=True))
    metadata = {key: value for key, value in graph.metadata.items() if key != STATED_ATTRIBUTES}
    return graph.evolve(ops=ops, metadata=metadata), (f"{changed} operators have attributes again that the file only notes",) * bool(
        changed
    )


def _with_stated(graph: Graph, op: Op, stated: Mapping[str, Any]) -> Op:
    result, activation, arithmetic = graph[op.outputs[0]], stated.get("activation"), stated.get("arithmetic")
    if op.kind == "AveragePool" and not op["arithmetic"] and arithmetic in ("ties_up", "ties_away"):
        op = op.with_attributes(arithmetic=arithmetic)
    if not activation or activation not in ACTIVATIONS or "activation" not in KINDS[op.kind].attributes or not result.is_quantized:
        return op
    same = clip_range(result, ACTIVATIONS[activation]) == clip_range(result, ACTIVATIONS[str(op["activation"])])
    return op.with_attributes(activation=activation) if same else op
