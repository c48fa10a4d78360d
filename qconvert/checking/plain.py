"""The plain form of a graph: no attribute that says how one framework's kernel rounds, no activation that its grid implies, and no axis
where there is one scale.

Formats without such attributes spell them out as further operators or leave them away, so only plain graphs can be expected back.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS, simplest_activation
from qconvert.graph.kinds import is_dynamic

__all__ = ["plain"]


def plain(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph whose operators all round to the nearest integer, ties to even, and, in words, what that changed."""
    ops = [_implied(graph, op) for op in graph.ops]
    implied = sum(new is not old for new, old in zip(ops, graph.ops, strict=True))
    rounded = [_nearest_even(op) for op in ops]
    changed = sum(new is not old for new, old in zip(rounded, ops, strict=True))
    single = [_per_tensor(tensor) for tensor in graph.tensors.values() if _has_one_scale(tensor)]
    if not implied and not changed and not single:
        return graph, ()
    notes = [f"{implied} activations are left away or simplified, since saturation of the output's grid does the same"] * bool(implied)
    notes += [f"{changed} operators round ties to even instead of as the source's kernels do"] * bool(changed)
    notes += [f"{len(single)} tensors with one scale along an axis have it for the whole tensor"] * bool(single)
    return graph.evolve(tensors=single, ops=rounded), tuple(notes)


def _has_one_scale(tensor: Tensor) -> bool:
    q = tensor.quantization
    return q is not None and q.axis is not None and q.scale.size == 1 and not q.block_size


def _per_tensor(tensor: Tensor) -> Tensor:
    assert tensor.quantization is not None
    return replace(tensor, quantization=replace(tensor.quantization, axis=None))


def _implied(graph: Graph, op: Op) -> Op:
    """The first activation of ACTIVATIONS that leaves the same integers: none if the whole grid is left, relu for relu6 of (0, 6)."""
    name = str(op.attributes.get("activation", ""))
    tensor = graph[op.outputs[0]] if op.outputs else None
    if not name or tensor is None or tensor.quantization is None or not tensor.quantization.is_per_tensor:
        return op
    found = simplest_activation(tensor, ACTIVATIONS[name])
    return op if found == name else op.with_attributes(activation=found)


def _nearest_even(op: Op) -> Op:
    return op.with_attributes(arithmetic="") if op.attributes.get("arithmetic") and not is_dynamic(op) else op
