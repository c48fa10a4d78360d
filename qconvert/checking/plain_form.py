"""The plain form of a graph: without attributes for one framework's rounding, activations that a quantization implies, the axis of a single
scale, and Reshapes to the same shape.

Formats without such attributes decompose them as further operators or leave them away, so only plain graphs can be expected back. TFLite,
which has no Identity, holds one as a RESHAPE.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS, simplest_activation
from qconvert.operators import is_dynamic
from qconvert.passes import remove_dead_code

__all__ = ["to_plain_form"]


def to_plain_form(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph with all operators rounding to the nearest integer, ties to even, and the changes in words."""
    kept = [_reshape_to_identity(graph, op) for op in graph.ops]
    if named := sum(new is not old for new, old in zip(kept, graph.ops, strict=True)):
        graph, _ = remove_dead_code.run(graph.evolve(ops=kept), None)
    ops = [_simplify_activation(graph, op) for op in graph.ops]
    implied = sum(new is not old for new, old in zip(ops, graph.ops, strict=True))
    rounded = [_round_to_even(op) for op in ops]
    changed = sum(new is not old for new, old in zip(rounded, ops, strict=True))
    single = [_make_per_tensor(tensor) for tensor in graph.tensors.values() if _has_one_scale(tensor)]
    if not named and not implied and not changed and not single:
        return graph, ()
    notes = [f"{implied} activations are removed or simplified, because quantization of the output clips to the same range"] * bool(implied)
    notes += [f"{named} Reshape that change no shape are Identity"] * bool(named)
    notes += [f"{changed} operators round ties to even instead of as the source's kernels do"] * bool(changed)
    notes += [f"{len(single)} tensors with one scale along an axis have it for the whole tensor"] * bool(single)
    return graph.evolve(tensors=single, ops=rounded), tuple(notes)


def _has_one_scale(tensor: Tensor) -> bool:
    q = tensor.quantization
    return q is not None and q.axis is not None and q.scale.size == 1 and not q.block_size


def _make_per_tensor(tensor: Tensor) -> Tensor:
    assert tensor.quantization is not None
    return replace(tensor, quantization=replace(tensor.quantization, axis=None))


def _reshape_to_identity(graph: Graph, op: Op) -> Op:
    """An Identity for a Reshape that changes neither shape nor quantization."""
    if op.kind != "Reshape":
        return op
    source, result = graph[op.inputs[0]], graph[op.outputs[0]]
    same = source.static_shape is not None and source.static_shape == result.static_shape and source.shares_quantization(result)
    return Op("Identity", op.inputs[:1], op.outputs, {}, op.source) if same else op


def _simplify_activation(graph: Graph, op: Op) -> Op:
    """The first activation of ACTIVATIONS that leaves the same integers: none if the whole quantization is left, relu for relu6 of (0,
    6)."""
    name = str(op.attributes.get("activation", ""))
    tensor = graph[op.outputs[0]] if op.outputs else None
    if not name or tensor is None or tensor.quantization is None or not tensor.quantization.is_per_tensor:
        return op
    found = simplest_activation(tensor, ACTIVATIONS[name])
    return op if found == name else op.with_attributes(activation=found)


def _round_to_even(op: Op) -> Op:
    return op.with_attributes(arithmetic="") if op.attributes.get("arithmetic") and not is_dynamic(op) else op
