"""Scales after a product in a program, as those of its weights.

Products whose integer weights are scaled after the sum, as torchao writes them, (x @ q) * s, become x @ (q * s), weights with a
quantization: one real-valued function, which float32 rounds in another order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.quantizations import label_key
from qconvert.graph import Array, Op, Quantization, Tensor
from qconvert.operators import kind_of, output_axis


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
