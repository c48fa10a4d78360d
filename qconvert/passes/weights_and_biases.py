"""Weights with one scale and with one for each output channel, and biases as int32 and as float32.

per_tensor_to_per_axis: weights and biases with one scale get it once for each output channel. Exact: no value changes.

Some runtimes and file formats take per-axis weights only. Weights are those of Conv, ConvTranspose, Gemm and MatMul.

per_axis_to_per_tensor: weights with a scale for each output channel are requantized to one scale.

Not exact, unless all scales of a tensor are equal. The new scale is the one with the smallest mean square error, of those that hold the
largest magnitude over all channels as the largest symmetric integer (127 in 8 bits) or clip it; channels with small weights lose steps. The
int32 bias is requantized to input scale * new weight scale. The notes say, for each tensor, the largest error of a weight in steps (LSB) of
the new scale and of the channel's old one, and the SQNR.

float_bias_to_int32: float32 biases of quantized operators become int32 at input scale * weight scale.

Integer kernels add the bias to the sum of products, whose scale this is; the scale is the float32 product of the two float32 scales.
Values are divided in float32, as onnxruntime does, or in float64 for a source of other kernels, and rounded half to even (rounded_bias()).
Not exact: the note says the largest error in steps (LSB) of that scale. The bias of an operator that the target runs in float
(isolate_float) stays as it is.

int32_bias_to_float: int32 biases of quantized operators become float32.

Each is value * scale, computed in float64 and rounded once. Exact as long as the integers have at most 24 bits; above, float32 has fewer
digits than the integer. The note says how many values cannot be taken back to the same integer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize, saturate, scale_and_zero_point
from qconvert.arithmetic.storage import fits_dtype
from qconvert.errors import format_count, format_verb
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.kernels.products import bias_quantization, rounded_bias
from qconvert.operators import kind_of
from qconvert.passes.linear import BiasQuantizations, separate_weights, weight_uses
from qconvert.passes.quantizations.scales_and_costs import least_loss_scale, middle, tensor_cost
from qconvert.passes.quantizations.weights_and_networks import symmetric_limits
from qconvert.plugins import Change, Cost, PassResult, Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.requantize import quantized_bias, requantize_tensor


def per_tensor_to_per_axis(graph: Graph, target: Target | None) -> PassResult:
    """Repeat scales and zero points. Constants that something else reads too stay, and so do biases of one value for all channels."""
    rewriter = Rewriter(graph)
    weights, biases = set[str](), set[str]()
    for use in weight_uses(graph):
        repeated = _repeat_scale(graph[use.name], use.axis) if use.alone else None
        if repeated is not None:
            weights.add(rewriter.define(repeated))
    for op in rewriter:
        bias = quantized_bias(graph, op)
        if bias is None or bias.quantization is None or op.inputs[1] not in weights or not _is_for_channels(rewriter, op, bias):
            continue
        repeated = _repeat_scale(bias, (bias.rank or 0) - 1)
        if repeated is not None:
            biases.add(rewriter.define(repeated))
    also = f" and {format_count(len(biases), 'bias')}" if biases else ""
    return rewriter.finish_with(lambda count: f"a scale for each output channel: {format_count(count, 'weight')}{also}", len(weights))


def _is_for_channels(rewriter: Rewriter, op: Op, bias: Tensor) -> bool:
    """Whether a bias has one value for each output channel of weights O,…, and is nothing but a bias."""
    if not bias.shape or bias.data is None or bias.name in rewriter.graph.public:
        return False
    weights = rewriter.graph.constant(op.inputs[1])
    channels = 0 if weights is None else len(weights)
    only_biases = all(kind_of(reader).sums_products for reader in rewriter.readers[bias.name])
    return only_biases and channels == bias.shape[-1] == bias.data.size


def _repeat_scale(tensor: Tensor, axis: int) -> Tensor | None:
    """Return the tensor with its one scale for each index along `axis`; None if it has others already."""
    q, size = tensor.require_quantization(), (tensor.static_shape or ())[axis]
    if q.axis is not None or size == 0:
        return None
    return replace(tensor, quantization=Quantization(np.repeat(q.scale, size), np.repeat(q.zero_point, size), axis))


def per_axis_to_per_tensor(graph: Graph, target: Target | None) -> PassResult:
    """Requantize the weights of Conv, ConvTranspose, Gemm and MatMul, and biases with them."""
    source, graph = graph, separate_weights(graph)
    weights = {use.name for use in weight_uses(graph) if use.alone}
    changed: dict[str, Tensor] = {}
    notes: list[Change | str] = []
    for tensor in graph.constants():
        if tensor.name not in weights or tensor.require_quantization().axis is None:
            continue
        found = _requantize_weights(tensor)
        if found is None:
            notes.append(f"{tensor.name!r} stays as it is: its weights are not integers with a scale for each channel")
        else:
            changed[tensor.name] = found
    biases = _requantize_biases(graph, changed, notes)
    notes = [*(_report(graph[name], tensor) for name, tensor in changed.items()), *notes]
    if not changed:
        return source, tuple(notes)
    made = BiasQuantizations(graph, "per_tensor")
    for tensor in changed.values():
        made.define(tensor)
    for op, bias, new in biases:
        if op.inputs[1] in changed:
            made.put(op, bias, new)
    return made.finish(), tuple(notes)


def _requantize_weights(tensor: Tensor) -> Tensor | None:
    q, data = tensor.quantization, tensor.data
    if q is None or data is None or not data.size or q.block_size or "float" in tensor.dtype:
        return None
    if (q.scale == q.scale[0]).all() and (q.zero_point == q.zero_point[0]).all():
        return replace(tensor, quantization=replace(q, scale=q.scale[:1].copy(), zero_point=q.zero_point[:1].copy(), axis=None))
    real = dequantize(data, q)
    scale = np.float32(least_loss_scale(real, symmetric_limits(tensor.dtype)) if real.any() else q.scale.max())
    return requantize_tensor(tensor, Quantization.per_tensor(float(scale), middle(tensor.dtype)))


def _requantize_biases(graph: Graph, changed: dict[str, Tensor], notes: list[Change | str]) -> list[tuple[Op, Tensor, Tensor]]:
    """Return the operators with their biases, old and new. Weights whose bias would not fit its type are taken out of `changed`."""
    found = []
    for op in graph.ops:
        bias = quantized_bias(graph, op)
        if bias is None or bias.quantization is None or op.inputs[1] not in changed:
            continue
        new = _requantize_bias(graph, op, bias, changed[op.inputs[1]])
        if new is None:
            notes.append(f"{op.inputs[1]!r} stays per-channel: with one scale the bias {bias.name!r} would not fit {bias.dtype}")
            del changed[op.inputs[1]]
            continue
        found.append((op, bias, new))
    return found


def _requantize_bias(graph: Graph, op: Op, bias: Tensor, weights: Tensor) -> Tensor | None:
    """Return the bias at input scale * new weight scale; None if a value leaves its type."""
    old, (data, factor) = bias.require_quantization(), (tensor.require_quantization() for tensor in (graph[op.inputs[0]], weights))
    assert bias.data is not None
    new = bias_quantization(data, factor, bias.data.shape)
    if new is None:
        return None
    if (old.scale == new.scale[0]).all():
        return replace(bias, quantization=new)
    steps = np.rint(dequantize(bias.data, old) / np.float64(new.scale[0]))
    return replace(bias, data=saturate(steps, bias.dtype), quantization=new) if fits_dtype(steps, bias.dtype) else None


def _report(old: Tensor, new: Tensor) -> Change:
    """Return what the requantization of one tensor costs."""
    quantization = old.require_quantization()
    if old.data is new.data:
        return Change(f"{old.name!r}: all scales are equal", exact=True)
    error = np.abs(old.float_values() - new.float_values())
    axis = quantization.axis or 0
    steps = error.max(axis=tuple(i for i in range(error.ndim) if i != axis), initial=0) / quantization.scale
    cost = tensor_cost(old, new)
    if cost is None:
        return Change(f"{old.name!r}: one scale, no weight changed", exact=True)
    return Change(f"one scale: {cost}, {steps.max(initial=0):.3g} LSB of the channel's old scale", costs=(cost,))


#: PyTorch's engines whose layers add a real bias to the exact sum.
_REAL = ("x86", "fbgemm", "onednn")


def float_bias_to_int32(graph: Graph, target: Target | None) -> PassResult:
    """Change the constant biases of Conv, ConvTranspose and Gemm with quantized data, weights and results.

    A bias that would leave int32, or whose scale would leave float32, stays and is named. One that operators of different scales
    read is made once for each scale.
    """
    biases = BiasQuantizations(graph, "int32")
    engine = graph.metadata.get(SOURCE_KERNELS, "").removeprefix("torch:")
    notes: list[Change | str] = []
    for op in biases:
        bias = quantized_bias(graph, op)
        if bias is None or bias.dtype != "float32" or bias.is_quantized or not graph[op.name].is_quantized:
            continue
        if target is not None and target.knows_kernels and target.judge(graph, replace(op, inputs=op.inputs[:2]), final=False).isolated_for:
            continue
        new = rounded_bias(graph, op, np.float64 if engine else np.float32)
        if new is None:
            notes.append(f"the bias {bias.name!r} of {op} stays float32: it does not fit int32 at input scale * weight scale")
            continue
        biases.put(op, bias, new)
    if not biases.made:
        return graph, tuple(notes)
    found = [_cost(graph[name], new) for (name, *_), new in biases.made.items()]
    inexact, largest = sum(changed for changed, _ in found), max(error for _, error in found)
    costs = tuple(Cost(name, None, error) for (name, *_), (changed, error) in zip(biases.made, found, strict=True) if changed)
    values = sum(tensor.data.size for tensor in biases.made.values() if tensor.data is not None)
    cost = f"; {inexact} of them are not exact, by at most {largest:.3g} LSB of the sums of products" if inexact else ", equal as float32"
    if inexact and engine in _REAL:
        cost += f": these layers give the integers of PyTorch's qnnpack, not of its {engine}, which keeps biases in float (-O biases=keep)"
    note = Change(
        f"{format_count(len(biases.made), 'bias')} of {format_count(values, 'value')} {format_verb(len(biases.made), 'are')} int32{cost}",
        exact=not largest,
        costs=costs,
    )
    return biases.finish(), (note, *notes)


def _cost(old: Tensor, new: Tensor) -> tuple[int, float]:
    """Return how many values changed, as float32, and the largest change in LSB."""
    assert old.data is not None
    real = new.float_values()
    scale, _ = scale_and_zero_point(new.require_quantization(), old.data.shape)
    error = np.abs(real - old.data) / scale
    return int((real.astype(np.float32) != old.data).sum()), float(error.max(initial=0))


def int32_bias_to_float(graph: Graph, target: Target | None) -> PassResult:
    """Change the biases of Conv, ConvTranspose and Gemm with quantized data and weights. A bias that others read too is copied."""
    biases = BiasQuantizations(graph, "float32")
    for op in biases:
        bias = quantized_bias(graph, op)
        if bias is not None and bias.dtype == "int32" and bias.quantization is not None:
            biases.put(op, bias, Tensor("", "float32", bias.shape, bias.float_values().astype(np.float32)))
    if not biases.made:
        return graph, ()
    values = sum(tensor.data.size for tensor in biases.made.values() if tensor.data is not None)
    lost = sum(_count_lost_values(graph[name], tensor) for (name, *_), tensor in biases.made.items())
    words = "all of them round to the same integers" if not lost else f"{lost} of them round to another integer"
    changed = biases.finish()
    costs = tuple(Cost(tensor.name, None, None) for tensor in biases.made.values())
    return changed, (
        Change(
            f"{format_count(len(biases.made), 'bias')} of {format_count(values, 'value')} "
            f"{format_verb(len(biases.made), 'are float32')}; {words}",
            costs=costs,
        ),
    )


def _count_lost_values(bias: Tensor, real: Tensor) -> int:
    """Return how many float32 values lie nearer to another integer's."""
    assert bias.data is not None and real.data is not None
    scale, _ = scale_and_zero_point(bias.require_quantization(), bias.data.shape)
    return int((np.rint(real.data.astype(np.float64) / scale.astype(np.float64)) != bias.data).sum())
