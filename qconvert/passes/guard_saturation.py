"""guard_saturation: weights whose products would saturate in the target's kernels are stored as uint8.

On x86 without VNNI, onnxruntime multiplies unsigned activations with signed weights by an instruction (vpmaddubsw) that adds two
neighbouring products in 16 bits: 255 * (w[2i] + w[2i+1]) beyond 32767 is cut off, silently. Only neighbours along K add, K being
(kernel row, kernel column, input channel) as onnxruntime lays convolutions out. Storing such weights as uint8 with zero point 128
selects kernels that add in 32 bits; integers and scales stay the same. Measured in docs/rounding.md.

Weights that came as uint8 and cannot saturate go the other way, to int8, because those kernels are faster. Next to int8 activations,
where nothing saturates, all weights are int8: onnxruntime has no other kernel.
"""

from __future__ import annotations

import numpy as np

from qconvert.graph import Graph, Op, Tensor
from qconvert.kernels.accumulators import largest_pair_sum, row_pairs
from qconvert.operators import integer_weights, is_dynamic, kind_of
from qconvert.passes.linear import WeightUse, replace_weights, weight_uses
from qconvert.passes.stored_types import shift_to_dtype
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target) -> PassResult:
    """Choose int8 or uint8 storage for the constant weights of Conv, Gemm and MatMul by the largest sum that its kernels hold."""
    if not target.storage.activations:
        return graph, ()
    changed: list[tuple[WeightUse, Tensor]] = []
    guarded = signed = 0
    for use in weight_uses(graph):
        readers = [graph.ops[index] for index in use.readers]
        found = [_weights(graph, op, target) for op in readers]
        weights = next((item for item in found if item is not None), None)
        if weights is None:
            continue
        assert weights.data is not None and weights.quantization is not None
        stored = weights.data.astype(np.int16) - (128 if weights.dtype == "uint8" else 0)
        most, used = target.kernels.max_pair_sum, (op for op in readers if target.kernels.rows_of_kind(op.kind))
        safe = not most or target.storage.activations == "int8" or all(largest_pair_sum(op, stored) <= most for op in used)
        if weights.dtype == "int8" and not safe:
            changed.append((use, shift_to_dtype(weights, "uint8")))
            guarded += 1
        elif weights.dtype == "uint8" and safe:
            changed.append((use, shift_to_dtype(weights, "int8")))
            signed += 1
    rewriter = Rewriter(graph)
    recurrent = _recurrent(rewriter, target.kernels.max_pair_sum) if target.kernels.max_pair_sum else set()
    notes = []
    if recurrent:
        notes.append(
            f"{len(recurrent)} weights of recurrent operators are stored as uint8 with zero point + 128, because sums of two "
            "products could saturate"
        )
    if guarded:
        notes.append(f"{guarded} weights are stored as uint8 with zero point + 128, because sums of two products could saturate")
    if signed:
        notes.append(f"{signed} uint8 weights are stored as int8 (integer and zero point - 128), for which kernels are faster")
    graph = rewriter.finish()
    return (replace_weights(graph, changed, "stored")[0] if changed else graph), tuple(notes)


def _recurrent(rewriter: Rewriter, largest: int) -> set[str]:
    """Store as uint8 the int8 weights of onnxruntime's DynamicQuantizeLSTM that could saturate and nothing else reads; return the names."""
    found = set()
    for op in rewriter.of_kind("LSTM"):
        if op["arithmetic"] != "dynamic_tensor":
            continue
        for index in integer_weights(op):
            weights = rewriter[op.inputs[index]]
            if weights.data is None or weights.dtype != "int8" or not rewriter.is_read_once(weights.name):
                continue
            if row_pairs(weights.data.astype(np.int16).reshape(-1, weights.data.shape[-1])) > largest:
                found.add(rewriter.define(shift_to_dtype(weights, "uint8")))
    return found


def _weights(graph: Graph, op: Op, target: Target) -> Tensor | None:
    """Return the 8-bit constant weights of an operator with an integer kernel whose data are stored as its activations are."""
    stored = target.storage.activations if is_dynamic(op) else graph[op.inputs[0]].dtype
    if not kind_of(op).sums_products or not target.kernels.rows_of_kind(op.kind) or stored != target.storage.activations:
        return None
    weights = graph[op.inputs[1]]
    if weights.data is None or weights.dtype not in ("int8", "uint8") or weights.quantization is None:
        return None
    return weights
