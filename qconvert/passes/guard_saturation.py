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

from qconvert.errors import format_count
from qconvert.files import release_pages
from qconvert.graph import Graph, Op, Tensor
from qconvert.kernels.accumulators import largest_pair_sum, row_pairs
from qconvert.operators import integer_weights, is_dynamic
from qconvert.passes.linear import WeightUse, replace_weights, weight_uses
from qconvert.passes.stored_types import shift_to_dtype
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def guard_saturation(graph: Graph, target: Target) -> PassResult:
    """Choose int8 or uint8 storage for the constant weights of Conv, Gemm and MatMul by the largest sum that its kernels hold."""
    if not target.storage.activations:
        return graph, ()
    changed: list[tuple[WeightUse, Tensor]] = []
    guarded = signed = 0
    for use in weight_uses(graph):
        weights, used = graph[use.name], [op for op in use.readers if _multiplies_bytes(graph, op, target)]
        if not used or weights.data is None:
            continue
        stored = weights.data.astype(np.int16) - (128 if weights.dtype == "uint8" else 0)
        most = target.kernels.max_pair_sum
        safe = not most or target.storage.activations == "int8" or all(largest_pair_sum(op, stored) <= most for op in used)
        if weights.dtype == "int8" and not safe:
            changed.append((use, shift_to_dtype(weights, "uint8")))
            guarded += 1
        elif weights.dtype == "uint8" and safe:
            changed.append((use, shift_to_dtype(weights, "int8")))
            signed += 1
        release_pages(weights.data)  # else the model is in memory as a file and once more as stored now
    rewriter = Rewriter(graph)
    recurrent = _recurrent(rewriter, target.kernels.max_pair_sum) if target.kernels.max_pair_sum else set()
    graph = rewriter.finish()
    saturated = "are stored as uint8 with zero point + 128, because sums of two products could saturate"
    notes = (
        (len(recurrent), "recurrent weight", saturated),
        (guarded, "weight", saturated),
        (signed, "uint8 weight", "are stored as int8 (integer and zero point - 128), for which kernels are faster"),
    )
    return replace_weights(graph, changed, "stored")[0], tuple(format_count(count, noun, words) for count, noun, words in notes if count)


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


def _multiplies_bytes(graph: Graph, op: Op, target: Target) -> bool:
    """Whether an operator has an integer kernel, data that are stored as the target's activations are, and weights of 8 bits."""
    stored = target.storage.activations if is_dynamic(op) else graph[op.inputs[0]].dtype
    is_alike = stored == target.storage.activations and graph[op.inputs[1]].dtype in ("int8", "uint8")
    return is_alike and bool(target.kernels.rows_for(op))
