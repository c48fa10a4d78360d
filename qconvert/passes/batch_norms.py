"""Batch normalizations after layers are part of these.

fold_batch_norm: a BatchNormalization after a float convolution or Gemm becomes part of its weights and bias.

y = (conv(x) - mean) * scale / sqrt(var + epsilon) + B (ONNX BatchNormalization, opset 15, inference) is the convolution with weights and
bias scaled. They are computed in float64 and rounded to float32 once, so outputs are equal only up to float32 rounding.

fold_qat_batch_norm: what quantization-aware training leaves after a convolution is folded into its bias; the trained integers stay.

torch.ao.nn.intrinsic.qat computes y = batch_norm(conv(x, fake_quantize(W * f)) / f + bias), with f = gamma / sqrt(var + epsilon), so that
training changes W while the quantization is that of W * f. What stands after the convolution multiplies by f again: it is
conv(x, fake_quantize(W * f)) + (bias - mean) * f + beta, up to the rounding of f to float32.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import batch_norm_factor
from qconvert.arithmetic import fold_batch_norm as fold_arrays
from qconvert.errors import format_count, format_verb
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.graph.metadata import VERSION
from qconvert.kernels.products import channel_axis
from qconvert.operators import kind_of
from qconvert.passes.absorb_quantization import absorb_quantization
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.requantize import is_quantized


def fold_batch_norm(graph: Graph, target: Target | None) -> PassResult:
    """Fold where weights and statistics are float32 constants and nobody else reads the convolution's result. Name what stays."""
    rewriter = Rewriter(graph)
    notes: list[str] = []
    for op in rewriter.of_kind("BatchNormalization"):
        before = rewriter.producers.get(op.inputs[0])
        if before is None or not kind_of(before).has_weights or rewriter.is_replaced(before):
            continue
        reason = _find_obstacle(graph, before, op) if rewriter.is_read_once(before.name) else "something else reads its input"
        if reason:
            notes.append(f"{op} stays: {reason}")
            continue
        weights, bias = _fold_into_weights(graph, before, op)
        names = []
        for old, data, word in ((before.inputs[1], weights, "weights"), (before.input(2), bias, "bias")):
            wanted = f"{old}/batch_norm" if old else f"{op.name}/{word}"
            names.append(rewriter.replace_constant(old, Tensor("", "float32", data.shape, data), wanted))
        rewriter.replace(before, replace(before, inputs=(before.inputs[0], *names), outputs=op.outputs))
        rewriter.remove(op)
    folded, note = rewriter.finish_with(
        lambda count: (
            f"{format_count(count, 'BatchNormalization', 'are')} folded into the weights before them; equal up to float32 rounding"
        )
    )
    return folded, (*note, *notes)


def _find_obstacle(graph: Graph, before: Op, op: Op) -> str:
    """Return why a BatchNormalization cannot be folded; "" if it can."""
    what = f"the {before.kind} before it"
    if any(graph[name].is_quantized for name in (*before.names, *op.outputs) if name):
        return f"{what} is quantized"
    if before["activation"]:
        return f"{what} has an activation"
    constants = [*before.inputs[1:], *op.inputs[1:]]
    if any(name and (graph.constant(name) is None or graph[name].dtype != "float32") for name in constants):
        return "weights or statistics are not float32 constants"
    if before.attributes.get("data_format") not in (None, op["data_format"]):
        return "its layout differs from the convolution's"
    channels = graph[before.inputs[1]].shape
    bias = graph.constant(before.input(2))
    if (
        not channels
        or any(graph[name].shape != channels[:1] for name in op.inputs[1:])
        or (bias is not None and bias.size not in (1, channels[0]))
    ):
        return "its channels differ from those of the weights"
    if bias is not None and bias.size > 1 and bias.shape[-1] != bias.size:
        return "the bias does not run along the channels"
    scale, _, _, variance = _read_statistics(graph, op)
    return "" if np.isfinite(batch_norm_factor(scale, variance, float(op["epsilon"]))).all() else "its variance is not positive"


def _read_statistics(graph: Graph, op: Op) -> list[Array]:
    """scale, B, mean and variance, in float64."""
    return [np.asarray(graph.constant(name), np.float64) for name in op.inputs[1:5]]


def _fold_into_weights(graph: Graph, before: Op, op: Op) -> tuple[Array, Array]:
    old, added = (graph.constant(before.input(index)) for index in (1, 2))
    scale, offset, mean, variance = _read_statistics(graph, op)
    weights, bias = fold_arrays(old, added, scale, offset, mean, variance, float(op["epsilon"]))
    return weights.astype(np.float32), bias.astype(np.float32)


#: How far the factors of Div and BatchNormalization may be from reciprocals of each other: a few roundings to float32.
_ROUNDINGS = 2.0**-20


def fold_qat_batch_norm(graph: Graph, target: Target | None) -> PassResult:
    """Fold after quantized convolutions and Gemms whose result nothing else reads; what is quantized after them is absorbed again.

    PyTorch's programs, when they are read (no target), keep the operators of their source if a conversion wrote them.
    """
    if target is None and VERSION in graph.metadata:
        return graph, ()
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("BatchNormalization"):
        between = _match_chain(rewriter, op)
        offset = _find_offset(graph, op, between) if between else None
        if offset is None:
            continue
        conv = between[0]
        bias = rewriter.constant(f"{op.name}/bias", offset)
        real = [rewriter.add_float(f"{name}/real", graph[name]) for name in conv.inputs[:2]]
        literal = [conv.derive("Dequantize", (old,), (new,)) for new, old in zip(real, conv.inputs, strict=False)]
        rewriter.replace(conv, *literal, replace(conv, inputs=(*real, bias), outputs=op.outputs))
        for item in (*between[1:], op):
            rewriter.remove(item)
    if not rewriter.replaced:
        return graph, ()
    changed, _ = absorb_quantization(rewriter.finish(), target)
    count = rewriter.replaced
    note = f"{format_count(count, 'layer')} of quantization-aware training {format_verb(count, 'have')} BatchNormalizations in the bias"
    return changed, (f"{note}; equal up to float32 rounding",)


def _match_chain(rewriter: Rewriter, op: Op) -> list[Op]:
    """Return the quantized convolution before a BatchNormalization, and the operators between; nothing if others read a part, or it is
    something else."""
    graph, name = rewriter.graph, op.inputs[0]
    found: list[Op] = []
    while (before := rewriter.producers.find(name, "Add", "Div", "Mul")) is not None:
        if before.attributes.get("activation") or _affine_step(graph, before) is None:
            return []
        found.insert(0, before)
        name = next(item for item in before.inputs if graph.constant(item) is None)
    before = rewriter.producers.get(name)
    fits = (
        before is not None
        and kind_of(before).has_weights
        and is_quantized(graph, before)
        and not graph[before.name].is_quantized
        and not before.attributes.get("activation")
        and before.attributes.get("data_format") in (None, op["data_format"])
        and any(not kind_of(item).sum_sign for item in found)
        and all(rewriter.is_read_once(item.name) for item in (before, *found))
    )
    return [before, *found] if fits and before is not None else []


def _affine_step(graph: Graph, op: Op) -> tuple[Array, Array] | None:
    """Return factor and constant, in float64, of an operator on data and a float32 constant; None if it is none."""
    affine, places = kind_of(op).affine, [place for place, name in enumerate(op.inputs) if graph.constant(name) is not None]
    data = graph.constant(op.inputs[places[0]]) if len(places) == 1 else None
    if affine is None or data is None or data.dtype != np.float32:
        return None
    with np.errstate(all="ignore"):
        found = affine(places[0], data.astype(np.float64))
    return None if found is None else (np.asarray(found[0]), np.asarray(found[1]))


def _find_offset(graph: Graph, op: Op, between: list[Op]) -> Array | None:
    """Return what is added to the convolution's sums in the end, one number a channel; None where they are multiplied too."""
    conv = between[0]
    shape = graph[conv.name].shape
    given = graph[conv.inputs[2]] if conv.has(2) else None
    if shape is None or any(graph[name].data is None or graph[name].dtype != "float32" for name in op.inputs[1:5]) or len(shape) < 2:
        return None
    if given is not None and (given.data is None or given.is_quantized):
        return None
    axis = channel_axis(conv, len(shape))
    scale, beta, mean, variance = _read_statistics(graph, op)
    count = scale.size
    factor, offset = np.ones(count), np.zeros(count) if given is None or given.data is None else given.data.astype(np.float64).reshape(-1)
    for item in between[1:]:
        step = _affine_step(graph, item)
        by, added = (None, None) if step is None else (_for_channels(data, len(shape), axis, count) for data in step)
        if by is None or added is None:
            return None
        with np.errstate(all="ignore"):
            factor, offset = factor * by, offset * by + added
    last = batch_norm_factor(scale, variance, float(op["epsilon"]))
    with np.errstate(all="ignore"):
        factor, offset = factor * last, (offset - mean) * last + beta
    if (
        factor.shape != (count,)
        or offset.shape != (count,)
        or not (np.abs(factor - 1) <= _ROUNDINGS).all()
        or not np.isfinite(offset).all()
    ):
        return None
    return offset.astype(np.float32)


def _for_channels(data: Array, rank: int, axis: int, count: int) -> Array | None:
    """Return a constant that is one number for each channel, or for all; None for others."""
    wide = data.reshape((1,) * (rank - data.ndim) + data.shape) if data.ndim <= rank else data
    sizes = [1] * rank
    sizes[axis] = count
    if wide.ndim != rank or list(wide.shape) not in ([1] * rank, sizes):
        return None
    return np.broadcast_to(wide.reshape(-1).astype(np.float64), (count,))
