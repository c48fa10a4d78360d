"""Finishing a graph after a program has been read: decomposed quantizations, constant subgraphs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.fake_quantization import find_fake_quantization
from qconvert.formats.torch.operands import skip_reinterpret
from qconvert.formats.torch.scaled_weights import scale_weights
from qconvert.formats.torch.session import Session
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of


def finish_graph(
    session: Session,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    producer: str,
    *,
    states: Mapping[str, Tensor] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Graph:
    """The graph of a program.

    Args:
        session: of the reading.
        name: of the graph.
        inputs, outputs: names of tensors; an output may be named twice, be an input or a constant.
        producer: what made the file.
        states: tensors that live from one run to the next.
        metadata: further entries.
    """
    draft = session.draft
    outputs = [skip_reinterpret(draft, output) for output in outputs]
    outputs = _copy_outputs(draft, inputs, draft.distinct(outputs))
    session.trained.extend(find_fake_quantization(draft))
    scale_weights(draft, outputs)
    compute_constants(draft)
    draft.prune(outputs)
    _drop_unread_states(draft, outputs)
    entries = {**session.metadata(producer), **(metadata or {})}
    return draft.finish(name, inputs, outputs, entries, states=states or {})


def _drop_unread_states(draft: Draft, outputs: Sequence[str]) -> None:
    """Drops trailing states that nothing reads; the first result of an operator always has a name."""
    read = {*outputs, *(name for op in draft.ops for name in op.inputs)}
    for index, op in enumerate(draft.ops):
        if kind_of(op).recurs and not read.issuperset(op.outputs[1:]):
            names = [op.outputs[0], *(name if name in read else "" for name in op.outputs[1:])]
            while not names[-1]:
                names.pop()
            draft.ops[index] = replace(op, outputs=tuple(names))
            for name in {*op.outputs[1:]} - read:
                del draft.tensors[name]


def _copy_outputs(draft: Draft, inputs: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Outputs that are inputs or constants become Identities of them."""
    found = []
    for name in outputs:
        tensor = draft.tensors[name]
        if name in inputs or tensor.is_constant:
            name = draft.add(f"{name}/output", tensor.dtype, tensor.shape, None, tensor.quantization)
            draft.append(Op("Identity", (tensor.name,), (name,)))
        found.append(name)
    return found


def compute_constants(draft: Draft) -> None:
    """Fold operators on constants alone into constants; integers after a Dequantize stay integers."""
    unpacked: set[str] = set()
    kept = []
    for op in draft.ops:
        is_unpacked = not unpacked.isdisjoint(op.inputs) or (kind_of(op).dequantizes and draft.known.get(op.inputs[0]) is not None)
        if is_unpacked:
            unpacked.update(op.outputs)
        is_quantized = any(draft.tensors[name].is_quantized for name in op.names if name)
        is_kept = is_unpacked or is_quantized or kind_of(op).has_effect or not op.inputs
        values = [None if is_kept or not name else draft.known.get(name) for name in op.outputs]
        if is_kept or any(value is None for value in values):
            kept.append(op)
            continue
        for name, value in zip(op.outputs, values, strict=True):
            if value is not None:
                draft.tensors[name] = replace(draft.tensors[name], data=value, shape=value.shape)
                draft.producers.pop(name, None)
    draft.ops = kept
