"""Finishing a graph after a program has been read: decomposed quantizations, scales of weights, constant subgraphs and outputs.

Products whose integer weights are scaled after the sum, as torchao writes them, (x @ q) * s, become x @ (q * s), weights with a
quantization: one real-valued function, which float32 rounds in another order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.quantizations import label_key
from qconvert.formats.torch.fake_quantization import find_fake_quantization
from qconvert.formats.torch.operands import skip_reinterpret
from qconvert.formats.torch.session import Session
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.operators import kind_of, output_axis


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


def scale_weights(draft: Draft, outputs: Collection[str]) -> None:
    """Gives the scales after a product to its weights, where these are integers on the scale 1 and nothing else reads the product."""
    gone: set[int] = set()
    new: dict[int, list[Op]] = {}
    for op in draft.ops:
        product = draft.producers.get(op.inputs[0]) if op.kind == "Mul" else None
        if product is None or not _is_plain(product) or op.attributes.get("activation") or not _is_alone(draft, product, outputs):
            continue
        turned = draft.producers.find(product.inputs[1], "Transpose")
        made = draft.producers.find(product.inputs[1] if turned is None else turned.inputs[0], "Dequantize")
        scales = draft.known.get(op.inputs[1])
        if made is None or scales is None:
            continue
        stored = draft.tensors[made.inputs[0]]
        axis = output_axis(product, 2)
        quantization = _scaled_quantization(stored, scales, axis if turned is None else 1 - axis)
        if quantization is None or stored.data is None:
            continue
        name = draft.variant(stored.name, f"label_{label_key(quantization)}", stored.data, quantization)
        real = draft.add(f"{name}/real", "float32", stored.shape)
        ops = [Op("Dequantize", (name,), (real,), {}, made.source)]
        if turned is not None:
            again = draft.add(f"{name}/turned", "float32", draft.tensors[turned.outputs[0]].shape)
            ops.append(replace(turned, inputs=(real,), outputs=(again,)))
        new[id(op)] = [*ops, replace(product, inputs=(product.inputs[0], ops[-1].outputs[0]), outputs=op.outputs)]
        gone.add(id(product))
    draft.ops = [item for op in draft.ops if id(op) not in gone for item in new.get(id(op), [op])]


def _is_alone(draft: Draft, op: Op, outputs: Collection[str]) -> bool:
    """Whether just one operator reads a result, and nobody else sees it."""
    return len(draft.readers[op.outputs[0]]) == 1 and op.outputs[0] not in outputs


def _is_plain(op: Op) -> bool:
    """Whether an operator is a product of data and weights without anything after it."""
    return (
        kind_of(op).is_matrix_product
        and len(op.inputs) == 2
        and not any(op.attributes.get(name) for name in ("activation", "trans_a", "trans_b"))
    )


def _scaled_quantization(weights: Tensor, scales: Array, axis: int) -> Quantization | None:
    """The quantization of a matrix of weights on the scale 1 that is multiplied by one number, or by one for each index of an axis."""
    quantization, data = weights.quantization, weights.data
    if (
        data is None
        or data.ndim != 2
        or quantization is None
        or quantization.axis is not None
        or quantization.scale[0] != 1
        or quantization.zero_point[0] != 0
    ):
        return None
    flat = scales.reshape(-1).astype(np.float32)
    fits = scales.dtype == np.float32 and (scales.ndim == 0 or scales.shape[-1] == scales.size) and scales.size in (1, data.shape[axis])
    if not fits or not (np.isfinite(flat) & (flat > 0)).all():
        return None
    return Quantization(flat, np.zeros(flat.size, np.int64), None if flat.size == 1 else axis)
