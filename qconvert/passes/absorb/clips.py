"""The clips that absorb_quantization leaves on integers become activations of the operators that write those integers."""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS, clip_range, is_exact
from qconvert.graph.kinds import KINDS
from qconvert.passes.absorb.lookahead import clip_bounds

__all__ = ["fuse_clips"]


def fuse_clips(graph: Graph) -> Graph:
    """Fuses a Clip of integers into the operator before it, if nobody else reads or sees what that writes.

    An activation that the operator has already, and the next one on the same grid, are one if an activation leaves what both leave. A
    Concat gets none, since no kernel clips what it joins.
    """
    readers = graph.consumers()
    ops: list[Op] = []
    writers: dict[str, int] = {}  # tensor -> the position in `ops` of the operator that writes it
    for op in graph.ops:
        position = writers.get(op.inputs[0]) if op.kind == "Clip" else None
        if position is not None and len(readers[op.inputs[0]]) == 1 and op.inputs[0] not in graph.public:
            writer = _with_clip(graph, ops[position], op)
            if writer is not None:
                ops[position] = writer
                writers[writer.outputs[0]] = position
                continue
        writers.update(dict.fromkeys(filter(None, op.outputs), len(ops)))
        ops.append(op)
    return graph if len(ops) == len(graph.ops) else graph.evolve(ops=ops)


def _with_clip(graph: Graph, writer: Op, clip: Op) -> Op | None:
    """The operator with the activation that the Clip behind it is, writing the Clip's result; None if there is no such activation."""
    source, result = graph[clip.inputs[0]], graph[clip.outputs[0]]
    q = source.quantization
    if q is None or not q.is_per_tensor or not source.shares_grid(result) or "activation" not in KINDS[writer.kind].attributes:
        return None
    if len(writer.outputs) != 1 or writer.attributes.get("arithmetic") or writer.kind == "Concat":
        return None
    bounds = clip_bounds([graph.constant(name) for name in clip.inputs[1:]], clip)
    if bounds is None or not is_exact(bounds, source):
        return None
    first, second = (clip_range(source, limits) for limits in (ACTIVATIONS[str(writer["activation"])], bounds))
    lowest, highest = max(first[0], second[0]), min(first[1], second[1])
    found = _activation(source, (lowest, highest)) if lowest <= highest else None
    if found is None:
        return None
    others = {name: value for name, value in writer.attributes.items() if name != "activation"}
    return replace(writer, outputs=clip.outputs, attributes={**others, "activation": found} if found else others)


def _activation(tensor: Tensor, limits: tuple[int, int]) -> str | None:
    """The simplest activation that leaves just these integers; None if none does."""
    return next((name for name, bounds in ACTIVATIONS.items() if clip_range(tensor, bounds) == limits), None)
