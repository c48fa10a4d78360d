"""symmetric_weights: constant weights become signed with zero point 0, as targets whose `weights` are int8 want them.

Exact where only the storage is unsigned (uint8 with zero point 128), and, for each output channel, wherever integer - zero point fits the
signed type: that integer with the same scale. Most channels do, since weights lie around zero and a zero point off the middle comes of
ranges that are not. Channels that do not fit get a scale of their own, the one with the smallest mean square error between clipping at
the old scale and holding the largest value, and are rounded so that their errors cancel; only their biases move. Weights that have to
have one scale are changed as a whole. Weights of operators that run on real values anyhow, as their results have no scale, are not rounded.

The integers used are target.quant_ranges of the type, by default without the lowest one, as TFLite's specification wants weights: some
kernels add two products in 16 bits, which -128 * -128 * 2 leaves. Channels that have the zero point 0 keep it (those of PyTorch's training,
whose kernel gives an affine grid to channels of one sign alone, among symmetric ones).

For a target whose `weights` are uint8 those with one scale become unsigned instead, which is exact. With "source" it is the data beside
them that decides, by target.weight_dtypes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qconvert.arithmetic import scale_and_zero_point
from qconvert.graph import Array, Graph, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.graph.kinds import KINDS
from qconvert.passes.costs import tensor_cost
from qconvert.passes.linear import WeightUse, replace_weights, weight_uses, with_biases
from qconvert.passes.stored_types import SIGNED, UNSIGNED, shifted
from qconvert.plugins import Change, Cost, Target, at_worst

__all__ = ["run"]

#: How many scales are tried for a channel that does not fit; for one of 16 bits; and for one of few values, as of a depthwise convolution,
#: for which some scale comes close to all of them.
_TRIED, _TRIED_OF_16_BITS, _TRIED_OF_FEW = 256, 32, 8192
_FEW = 32


@dataclass(frozen=True, slots=True)
class _Symmetric:
    """Weights on a symmetric grid, what that costs, and how many channels kept their scale, of how many."""

    tensor: Tensor
    cost: Cost | None
    kept: int
    channels: int


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Changes the weights of Conv, ConvTranspose, Gemm and MatMul if the target wants others (symmetric ones if there is no target)."""
    new: list[tuple[WeightUse, Tensor]] = []
    counts: Counter[str] = Counter()
    notes: list[Change] = []
    lossy: list[_Symmetric] = []
    for use in weight_uses(graph):
        weights, wanted = graph[use.name], _wanted(graph, use, target)
        assert weights.quantization is not None
        if wanted == "uint8":
            if weights.dtype == "int8" and weights.quantization.is_per_tensor:
                new.append((use, shifted(weights, UNSIGNED[weights.dtype])))
                counts["unsigned"] += 1
            continue
        if wanted != "int8" or "float" in weights.dtype:
            continue
        signed = shifted(weights, SIGNED[weights.dtype]) if weights.dtype in SIGNED else weights
        limits = _limits(signed, target)
        if _fits(signed, limits, target):
            if signed is not weights:
                new.append((use, signed))
                counts["stored"] += 1
            continue
        if weights.quantization.block_size:
            notes.append(Change(f"the weights {use.name!r} stay as they are: their zero points are those of blocks"))
            continue
        ranges = target.quant_ranges if target is not None else {}
        kept = limits[0] if signed.dtype in ranges else integer_range(signed.dtype)[0]
        found = _symmetric(signed, use.axis, limits, kept, _one_scale(graph, use, target))
        if found.cost is not None and _on_real_values(graph, use, target):
            continue
        new.append((use, found.tensor))
        counts["moved"] += found.cost is None
        lossy += [found] if found.cost is not None else []
    exact = [Change(f"{counts[what]} {text}", exact=True) for what, text in _TEXTS.items() if counts[what]]
    if not new:
        return graph, tuple(notes)
    changed, names = replace_weights(graph, new, "symmetric")
    return with_biases(changed, names, "symmetric"), (*exact, *([_told(lossy)] if lossy else []), *notes)


_TEXTS = {
    "stored": "unsigned weights are stored as signed ones (integer and zero point - 128)",
    "unsigned": "signed weights are stored as unsigned ones (integer and zero point + 128)",
    "moved": "weights have zero point 0 with the scales that they had (integer - zero point)",
}


def _told(lossy: Sequence[_Symmetric]) -> Change:
    """What weights cost of which some channels got another scale."""
    kept, channels = (sum(counts) for counts in zip(*((item.kept, item.channels) for item in lossy), strict=True))
    costs = tuple(item.cost for item in lossy if item.cost is not None)
    text = f"{len(lossy)} weights have zero point 0: {kept} of {channels} scales stay, as do all values under them"
    return Change(f"{text}, {channels - kept} are others, {at_worst(costs)}", costs=costs)


def _wanted(graph: Graph, use: WeightUse, target: Target | None) -> str:
    """The type that the target wants these weights in; "" for any."""
    if target is None:
        return "int8"
    if target.weights != "source":
        return target.weights
    data = graph[graph.ops[use.readers[0]].inputs[0]].dtype
    return next((dtype for dtype in target.weight_dtypes.get(data, ()) if dtype in ("int8", "uint8")), "")


def _on_real_values(graph: Graph, use: WeightUse, target: Target | None) -> bool:
    """Whether all readers of weights compute on real values anyhow, since their results have no scale, so that any grid will do."""
    ops = [graph.ops[index] for index in use.readers]
    if target is None or not target.knows_kernels or any(graph[op.outputs[0]].is_quantized for op in ops):
        return False
    return all(graph[op.inputs[0]].is_quantized and target.judge(graph, op, final=False).isolated_for for op in ops)


def _limits(weights: Tensor, target: Target | None) -> tuple[int, int]:
    """The smallest and the largest integer that new symmetric weights use."""
    high = integer_range(weights.dtype)[1]
    return target.quant_ranges.get(weights.dtype, (-high, high)) if target is not None else (-high, high)


def _fits(weights: Tensor, limits: tuple[int, int], target: Target | None) -> bool:
    """Whether signed weights are symmetric, and within the range that a target states."""
    assert weights.quantization is not None and weights.data is not None
    if not weights.quantization.is_symmetric:
        return False
    if target is None or weights.dtype not in target.quant_ranges or weights.quantization.block_size or not weights.data.size:
        return True
    return bool(limits[0] <= weights.data.min() and weights.data.max() <= limits[1])


def _one_scale(graph: Graph, use: WeightUse, target: Target | None) -> bool:
    """Whether the target takes no scale for each output channel here; what a MatMul multiplies are data."""
    if target is None:
        return False
    are_data = any(not KINDS[graph.ops[index].kind].has_weights for index in use.readers)
    return target.weight_granularity == "per_tensor" or (are_data and target.activation_granularity == "per_tensor")


def _symmetric(weights: Tensor, axis: int, limits: tuple[int, int], kept: int, one_scale: bool) -> _Symmetric:
    """Signed weights with zero point 0: their integers less the zero points, and other scales where these leave the limits.

    Args:
        weights: signed ones.
        axis: of their outputs.
        limits: the smallest and the largest integer of channels that get a zero point.
        kept: the smallest of those that have it.
        one_scale: whether they may not have one for each channel.
    """
    q, data = weights.quantization, weights.data
    assert q is not None and data is not None
    wide = np.int16 if data.dtype.itemsize == 1 else np.int32
    steps = data.astype(wide) - scale_and_zero_point(q, data.shape)[1].astype(wide)
    along = q.axis if q.axis is not None else None if one_scale else axis
    parts = steps[None] if along is None else np.moveaxis(steps, along, 0)
    zero_points = np.broadcast_to(q.zero_point, len(parts)) if along == q.axis or q.axis is None else np.ones(len(parts))
    leaving = [
        index
        for index, (part, point) in enumerate(zip(parts, zero_points, strict=True))
        if part.size and (part.min() < (kept if point == 0 else limits[0]) or part.max() > limits[1])
    ]
    ratios = np.ones(len(parts))
    for index in leaving:
        ratios[index] = _ratio(parts[index], limits)
    if q.axis is None and (ratios == 1).all():
        along, ratios = None, ratios[:1]
    scale = (q.scale * ratios).astype(np.float32)
    for index in leaving:
        true_ratio = float(scale[index if along is not None else 0]) / float(q.scale[index if q.axis is not None else 0])
        parts[index] = _rounded(parts[index], true_ratio, limits)
    grid = Quantization(scale, np.zeros(scale.size, np.int64), along)
    stored = replace(weights, data=steps.astype(numpy_dtype(weights.dtype)), quantization=grid)
    return _Symmetric(stored, tensor_cost(weights, stored) if leaving else None, len(parts) - len(leaving), len(parts))


def _rounded(steps: Array, ratio: float, limits: tuple[int, int]) -> Array:
    """Steps on a grid `ratio` times as coarse, whose errors add up to no more than half a step where that can be had.

    Data behind a Relu are positive, and neighbours are alike, so that errors of one sign would shift the whole channel. The values that
    are rounded the other way are those nearest to the middle between two steps.
    """
    exact = (steps / ratio).reshape(-1)
    stored = np.clip(np.rint(exact), *limits)
    error = stored - exact
    surplus = int(np.rint(error.sum()))
    sign = int(np.sign(surplus))
    free = np.flatnonzero((sign * error > 0) & (limits[0] <= stored - sign) & (stored - sign <= limits[1]))
    stored[free[np.argsort(-sign * error[free], kind="stable")][: abs(surplus)]] -= sign
    return np.asarray(stored.reshape(steps.shape))


def _ratio(steps: Array, limits: tuple[int, int]) -> float:
    """New scale over old one, with the smallest mean square error of integers - zero points that leave the limits.

    Tried are the old scale, which clips and leaves all else exact, the largest common divisor, and scales up to a little above the one that
    holds the largest value, or half above it where there are few values.
    """
    levels, counts = np.unique(steps, return_counts=True)
    holding = max(levels[-1] / limits[1] if limits[1] else 1, levels[0] / limits[0] if limits[0] else 1)
    few, many = levels.size <= _FEW, levels.size > 1024
    tried, highest = (_TRIED_OF_FEW, 1.5) if few else (_TRIED_OF_16_BITS if many else _TRIED, 1.02)
    ratios = np.unique([1.0, float(np.gcd.reduce(np.abs(levels))), *np.linspace(1, highest * holding, tried), holding])
    stored = np.clip(np.rint(levels / ratios[:, None]), *limits)
    return float(ratios[np.argmin(np.square(stored * ratios[:, None] - levels) @ counts)])
