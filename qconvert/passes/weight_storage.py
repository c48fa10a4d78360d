"""Weights in the integer type, and around the zero point, that kernels want.

symmetric_weights: constant weights become signed with zero point 0, as targets whose `weights` are int8 want them.

Exact where only the storage is unsigned (uint8 with zero point 128), and, for each output channel, wherever integer - zero point fits the
signed type: that integer with the same scale. Most channels do, since weights lie around zero and a zero point off the middle comes of
ranges that are not. Channels that do not fit get a scale of their own, the one with the smallest mean square error between clipping at
the old scale and holding the largest value, and are rounded so that their errors cancel; only their biases move. Weights that have to
have one scale are changed as a whole. Weights of operators that run in float anyhow, as their results have no scale, are not rounded.

The integers used are a target's quant_ranges of the type, by default without the lowest one, as TFLite's specification wants weights: some
kernels add two products in 16 bits, which -128 * -128 * 2 leaves. Channels that have the zero point 0 keep it (those of PyTorch's training,
whose kernel gives an affine quantization to channels of one sign alone, among symmetric ones).

Weights of 4 bits and fewer become int8 as well where the target's kernels take nothing else apart from their data.

For a target whose `weights` are uint8 those with one scale become unsigned instead, which is exact, next to quantized data. With "source"
it is the data next to them that decides, by its weight_dtypes.

guard_saturation: weights whose products would saturate in the target's kernels are stored as uint8.

On x86 without VNNI, onnxruntime multiplies unsigned activations with signed weights by an instruction (vpmaddubsw) that adds two
neighbouring products in 16 bits: 255 * (w[2i] + w[2i+1]) beyond 32767 is cut off, silently. Only neighbours along K add, K being
(kernel row, kernel column, input channel) as onnxruntime lays convolutions out. Storing such weights as uint8 with zero point 128
selects kernels that add in 32 bits; integers and scales stay the same. Measured in docs/rounding.md.

Weights that came as uint8 and cannot saturate go the other way, to int8, because those kernels are faster. Next to int8 activations,
where nothing saturates, all weights are int8: onnxruntime has no other kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.errors import format_count
from qconvert.files import release_pages
from qconvert.graph import Graph, Op, Tensor, integer_range
from qconvert.kernels.accumulators import largest_pair_sum, row_pairs
from qconvert.operators import integer_weights, is_dynamic, kind_of
from qconvert.passes.linear import WeightUse, replace_weights, weight_uses, with_biases
from qconvert.passes.quantizations.scales_and_costs import least_loss_ratio
from qconvert.passes.quantizations.weights_and_networks import Channel, Rescaled, Scaling, rescale_weights, sum_costs
from qconvert.passes.stored_types import UNSIGNED, as_signed, shift_to_dtype
from qconvert.plugins import Change, PassResult, Target
from qconvert.rewriting import Rewriter

#: How many scales are tried for channels of few values: only a channel or two of a model do not fit.
_TRIED_OF_FEW = 8192


def symmetric_weights(graph: Graph, target: Target | None, scope: str = "asked") -> PassResult:
    """Change the weights of Conv, ConvTranspose, Gemm and MatMul if the target wants others, or if all shall be symmetric."""
    new: list[tuple[WeightUse, Tensor]] = []
    counts: Counter[str] = Counter()
    notes: list[Change] = []
    lossy: list[Rescaled] = []
    for use in weight_uses(graph):
        weights, wanted = graph[use.name], "int8" if scope == "all" else _wanted_type(graph, use, target)
        if wanted == "uint8":
            if weights.dtype == "int8" and weights.per_tensor is not None:
                new.append((use, shift_to_dtype(weights, UNSIGNED[weights.dtype])))
                counts["unsigned"] += 1
            continue
        if wanted != "int8" or "float" in weights.dtype:
            continue
        wide = _widen_to_int8(graph, use, target)
        signed = wide or as_signed(weights)
        limits = _limits(signed, target)
        if _fits(signed, limits, target):
            if signed is not weights:
                new.append((use, signed))
                counts["wide" if wide else "stored"] += 1
            continue
        if weights.require_quantization().block_size:
            notes.append(Change(f"the weights {use.name!r} are unchanged: their zero points are per-block"))
            continue
        ranges = target.storage.quant_ranges if target is not None else {}
        kept = limits[0] if signed.dtype in ranges else integer_range(signed.dtype)[0]
        axis = None if _is_per_tensor_only(use, target) else use.axis
        found = rescale_weights(signed, axis, signed.dtype, limits, _scaling(limits, kept))
        if found.cost is not None and _is_used_in_float(graph.evolve(tensors=[found.tensor]), use, target):
            continue
        new.append((use, found.tensor))
        counts["moved"] += found.is_exact
        lossy += [] if found.is_exact else [found]
    exact = [Change(format_count(counts[what], *text), exact=True) for what, text in _TEXTS.items() if counts[what]]
    if not new:
        return graph, tuple(notes)
    changed, names = replace_weights(graph, new, "symmetric")
    return with_biases(changed, names, "symmetric"), (*exact, *([_describe_change(lossy)] if lossy else []), *notes)


_TEXTS = {
    "stored": ("unsigned weight", "are stored as signed (integer and zero point - 128)"),
    "unsigned": ("signed weight", "are stored as unsigned (integer and zero point + 128)"),
    "wide": ("weight", "are stored as int8, instead of in fewer bits, for which there is a kernel"),
    "moved": ("weight", "have zero point 0 with their previous scales (integer - zero point)"),
}


def _describe_change(lossy: Sequence[Rescaled]) -> Change:
    """Return what weights cost of which some channels got another scale."""
    kept, channels, costs, worst = sum_costs(lossy)
    text = f"{format_count(len(lossy), 'weight', 'have')} zero point 0: {kept} of {channels} scales and their values are kept"
    return Change(f"{text}, {channels - kept} change, {worst}", costs=costs)


def _wanted_type(graph: Graph, use: WeightUse, target: Target | None) -> str:
    """Return the type that the target wants these weights in; "" for any."""
    if target is None:
        return "int8"
    data = graph[use.readers[0].inputs[0]]
    if target.storage.weights == "uint8" and not data.is_quantized:  # LiteRT's hybrid kernels read the integers as signed ones
        return "int8"
    if target.storage.weights != "source":
        return target.storage.weights
    return next((dtype for dtype in target.storage.weight_dtypes.get(data.dtype, ()) if dtype in ("int8", "uint8")), "")


def _widen_to_int8(graph: Graph, use: WeightUse, target: Target | None) -> Tensor | None:
    """Return weights of fewer bits with the same integers in int8, where a target has kernels for that alone next to their data; else
    None."""
    weights, data = graph[use.name], graph[use.readers[0].inputs[0]]
    taken = target.storage.weight_dtypes.get(data.dtype, ()) if target is not None and data.is_quantized else ()
    if weights.dtype not in ("int4", "uint4", "int2", "uint2") or weights.dtype in taken or "int8" not in taken or weights.data is None:
        return None
    if weights.quantization is None or weights.quantization.block_size:
        return None
    return replace(weights, dtype="int8", data=weights.data.astype(np.int8))


def _is_used_in_float(graph: Graph, use: WeightUse, target: Target | None) -> bool:
    """Whether all readers of weights compute in float anyhow, so that any quantization will do: their results have no scale, or the target
    has no integer kernel of their kind.

    Args:
        graph: with the new weights, whose type some targets take next to a real result.
    """
    if target is None or not target.knows_kernels:
        return False
    if target.floats and all(target.kernels.types(op) is None for op in use.readers):
        return True
    if any(graph[op.name].is_quantized for op in use.readers):
        return False
    return all(graph[op.inputs[0]].is_quantized and target.judge(graph, op, final=False).isolated_for for op in use.readers)


def _limits(weights: Tensor, target: Target | None) -> tuple[int, int]:
    """Return the smallest and the largest integer that new symmetric weights use."""
    high = integer_range(weights.dtype)[1]
    return target.storage.quant_ranges.get(weights.dtype, (-high, high)) if target is not None else (-high, high)


def _fits(weights: Tensor, limits: tuple[int, int], target: Target | None) -> bool:
    """Whether signed weights are symmetric, and within the range that a target states."""
    quantization = weights.require_quantization()
    if not quantization.is_symmetric:
        return False
    if target is None or weights.dtype not in target.storage.quant_ranges or quantization.block_size:
        return True
    data = np.asarray(weights.data)
    return not data.size or bool(limits[0] <= data.min() and data.max() <= limits[1])


def _is_per_tensor_only(use: WeightUse, target: Target | None) -> bool:
    """Whether the target takes no scale for each output channel here; what a MatMul multiplies are data."""
    if target is None:
        return False
    are_data = any(not kind_of(op).has_weights for op in use.readers)
    return target.storage.weight_granularity == "per_tensor" or (are_data and target.storage.activation_granularity == "per_tensor")


def _scaling(limits: tuple[int, int], kept: int) -> Scaling:
    """Return what keeps the scale of channels whose integers less the zero point fit; those with the zero point 0 may use `kept` too."""

    def scaling(channel: Channel) -> float | None:
        lowest = kept if channel.zero_point == 0 else limits[0]
        fits = channel.steps.min() >= lowest and channel.steps.max() <= limits[1]
        return None if fits else least_loss_ratio(channel.steps, limits, tried_of_few=_TRIED_OF_FEW)

    return scaling


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
        signed_data, most = as_signed(weights).data, target.kernels.max_pair_sum
        assert signed_data is not None
        safe = not most or target.storage.activations == "int8" or all(largest_pair_sum(op, signed_data) <= most for op in used)
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
            if row_pairs(weights.data.reshape(-1, weights.data.shape[-1])) > largest:
                found.add(rewriter.define(shift_to_dtype(weights, "uint8")))
    return found


def _multiplies_bytes(graph: Graph, op: Op, target: Target) -> bool:
    """Whether an operator has an integer kernel, data that are stored as the target's activations are, and weights of 8 bits."""
    stored = target.storage.activations if is_dynamic(op) else graph[op.inputs[0]].dtype
    is_alike = stored == target.storage.activations and graph[op.inputs[1]].dtype in ("int8", "uint8")
    return is_alike and bool(target.kernels.rows_for(op))
