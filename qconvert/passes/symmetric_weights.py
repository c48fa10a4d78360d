"""symmetric_weights: constant weights become signed with zero point 0, as targets whose `weights` are int8 want them.

Exact where the zero point only says that the integers are stored unsigned (uint8 with 128). Any other zero point cannot be kept: the
weights are requantized with scale' = max|real| / (2^(bits-1) - 1), per output channel where they were, and the note says the largest error
and the SQNR of each. For a target whose `weights` are uint8, those with one scale become unsigned instead, which is exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.graph import Array, Graph, Quantization, Tensor, integer_range
from qconvert.passes.linear import constant_weights, with_biases
from qconvert.passes.stored_types import SIGNED, UNSIGNED, shifted
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Changes the weights of Conv, ConvTranspose, Gemm and MatMul if the target wants symmetric ones (or if there is no target)."""
    if target is not None and target.weights == "uint8":
        return _unsigned(graph)
    if target is not None and target.weights != "int8":
        return graph, ()
    changed: dict[str, Tensor] = {}
    notes: list[str] = []
    moved = 0
    for name in constant_weights(graph):
        weights = graph[name]
        signed = shifted(weights, SIGNED[weights.dtype]) if weights.dtype in SIGNED else weights
        assert signed.quantization is not None
        if not signed.quantization.is_symmetric and signed.quantization.block_size:
            notes.append(f"the weights {name!r} stay as they are: their zero points are those of blocks")
            continue
        if not signed.quantization.is_symmetric:
            signed, note = _requantized(signed)
            notes.append(note)
        elif signed is not weights:
            moved += 1
        if signed is not weights:
            changed[name] = signed
    if notes and all(graph[name].dtype == "uint8" for name in constant_weights(graph)):
        notes.append("the target tflite-uint8 would keep these weights as they are")
    if moved:
        notes.insert(0, f"{moved} unsigned weights are stored as signed ones (integer and zero point - 128; exact)")
    if not changed:
        return graph, tuple(notes)
    return with_biases(graph.evolve(tensors=changed.values()), set(changed), "symmetric"), tuple(notes)


def _unsigned(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Signed weights with one scale as unsigned ones."""
    found = [graph[name] for name in constant_weights(graph)]
    signed = [t for t in found if t.dtype == "int8" and t.quantization is not None and t.quantization.is_per_tensor]
    if not signed:
        return graph, ()
    note = f"{len(signed)} signed weights are stored as unsigned ones (integer and zero point + 128; exact)"
    return graph.evolve(tensors=[shifted(tensor, UNSIGNED[tensor.dtype]) for tensor in signed]), (note,)


def _requantized(weights: Tensor) -> tuple[Tensor, str]:
    assert weights.data is not None and weights.quantization is not None
    q, (_, high) = weights.quantization, integer_range(weights.dtype)
    # With one scale for all, each of the 256 integers is computed once.
    levels = _levels(weights.data) if q.axis is None and weights.dtype == "int8" and weights.data.size else None
    integers, counts = (weights.data, None) if levels is None else levels
    real = dequantize(integers, q)
    others = tuple(axis for axis in range(real.ndim) if axis != q.axis)
    largest = np.abs(real).max(axis=others if q.axis is not None else None, initial=0.0)
    scale = (np.atleast_1d(largest) / high).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1)).astype(np.float32)
    grid = Quantization(scale, np.zeros(scale.size, np.int64), q.axis)
    stored = quantize(real, grid, weights.dtype)
    error = dequantize(stored, grid) - real
    steps = float((np.abs(error) / _broadcast(scale, real.ndim, q.axis)).max(initial=0.0))
    noise, signal = (float(np.average(np.square(values), weights=counts)) for values in (error, real))
    sqnr = f"SQNR {10 * np.log10(signal / noise):.1f} dB" if noise and signal else "exactly"
    note = f"the weights {weights.name!r} with zero point {int(q.zero_point[0])} are requantized: at most {steps:.2g} LSB, {sqnr}"
    if levels is not None:
        table = np.zeros(256, np.int8)
        table[integers.view(np.uint8)] = stored
        stored = np.take(table, weights.data.view(np.uint8))
    return replace(weights, data=stored, quantization=grid), note


def _levels(data: Array) -> tuple[Array, Array]:
    """The int8 values that occur, and how often each does."""
    counts = np.bincount(data.reshape(-1).view(np.uint8), minlength=256)
    present = np.flatnonzero(counts)
    return present.astype(np.uint8).view(np.int8), counts[present]


def _broadcast(scale: Array, rank: int, axis: int | None) -> Array:
    return scale.reshape([-1 if i == axis else 1 for i in range(rank)]) if axis is not None else scale.reshape(())
