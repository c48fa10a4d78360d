"""fold_batch_norm: a BatchNormalization after a float convolution or Gemm becomes part of its weights and bias.

y = (conv(x) - mean) * scale / sqrt(var + epsilon) + B (ONNX BatchNormalization, opset 15, inference) is the convolution with weights and
bias scaled. They are computed in float64 and rounded to float32 once, so outputs are equal only up to float32 rounding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import batch_norm_factor, fold_batch_norm
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Fold where weights and statistics are float32 constants and nobody else reads the convolution's result. Name what stays."""
    rewriter = Rewriter(graph)
    notes: list[str] = []
    for op in rewriter.of_kind("BatchNormalization"):
        before = rewriter.producers.get(op.inputs[0])
        if before is None or not kind_of(before).has_weights or rewriter.is_replaced(before):
            continue
        reason = _obstacle(graph, before, op) if rewriter.is_read_once(before.name) else "something else reads its input"
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
        "{} BatchNormalizations are folded into the weights before them; equal up to float32 rounding".format
    )
    return folded, (*note, *notes)


def _obstacle(graph: Graph, before: Op, op: Op) -> str:
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
    scale, _, _, variance = _statistics(graph, op)
    return "" if np.isfinite(batch_norm_factor(scale, variance, float(op["epsilon"]))).all() else "its variance is not positive"


def _statistics(graph: Graph, op: Op) -> list[Array]:
    """scale, B, mean and variance, in float64."""
    return [np.asarray(graph.constant(name), np.float64) for name in op.inputs[1:5]]


def _fold_into_weights(graph: Graph, before: Op, op: Op) -> tuple[Array, Array]:
    old, added = (graph.constant(before.input(index)) for index in (1, 2))
    scale, offset, mean, variance = _statistics(graph, op)
    weights, bias = fold_batch_norm(old, added, scale, offset, mean, variance, float(op["epsilon"]))
    return weights.astype(np.float32), bias.astype(np.float32)
