"""The clips that absorb_quantization leaves on integers become activations of the operators that write those integers."""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS, clip_range, is_exact
from qconvert.operators import kind_of
from qconvert.passes.absorb.lookahead import clip_bounds
from qconvert.rewriting import Rewriter

__all__ = ["fuse_clips"]


def fuse_clips(graph: Graph) -> Graph:
    """Fuse a Clip of integers into the operator before it, if nobody else reads or sees what that writes.

    An activation that the operator has already, and the next one with the same quantization, are one if an activation leaves what both
    leave. A Concat gets none, since no kernel clips what it joins.
    """
    rewriter = Rewriter(graph)
    fused: dict[str, tuple[Op, Op]] = {}  # result of a fused operator -> the operator of the graph, and its form now
    for op in rewriter:
        name = op.inputs[0] if op.kind == "Clip" and rewriter.is_read_once(op.inputs[0]) else ""
        maker = rewriter.producers.get(name)
        if maker is None:
            continue
        maker, form = fused.get(name, (maker, maker))
        clipped = _with_clip(graph, form, op)
        if clipped is not None:
            rewriter.replace(maker, clipped)
            rewriter.remove(op)
            fused[clipped.outputs[0]] = maker, clipped
    return rewriter.finish()


def _with_clip(graph: Graph, writer: Op, clip: Op) -> Op | None:
    """Return the operator with the activation that the Clip after it is, writing the Clip's result; None if there is none."""
    source, result = graph[clip.inputs[0]], graph[clip.outputs[0]]
    q = source.quantization
    if q is None or not q.is_per_tensor or not source.shares_quantization(result) or "activation" not in kind_of(writer).attributes:
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
    """Return the simplest activation that leaves just these integers; None if none does."""
    return next((name for name, bounds in ACTIVATIONS.items() if clip_range(tensor, bounds) == limits), None)
