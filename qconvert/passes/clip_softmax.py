"""clip_softmax: a quantized Softmax or LogSoftmax is computed in float, with a Clip between it and the Quantize. Exact.

    x -> Softmax -> y        x -> Dequantize -> Softmax -> Clip (0, 1) -> Quantize -> y

The Clip changes nothing: values of a Softmax lie between 0 and 1, those of a LogSoftmax below 0. tract (0.23.9) takes what stands between
Dequantize and Quantize for a function of one element and makes a table of it, so that all scores are 0 or 255; after a Clip it does not.
onnxruntime drops a Clip that the Quantize implies, and computes a Softmax between the two by its own kernel on integers. Where that
overflows, a Min with 1 is in the place of the Clip, which onnxruntime keeps.
An accelerator knows a Softmax by the two operators around it, so that a target which has one keeps it as it is.
"""

from __future__ import annotations

import math
from dataclasses import replace

from qconvert.errors import format_count
from qconvert.graph import Graph, drop_keys
from qconvert.kernels import KERNELS
from qconvert.operators import kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

_KINDS = ("Softmax", "LogSoftmax")


def clip_softmax(graph: Graph, target: Target | None) -> PassResult:
    """Put each of them, whose data and result are quantized, between Dequantize, Clip and Quantize."""
    if target is not None and target.accelerator is not None:
        return graph, ()
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind(*_KINDS):
        if not all(map(graph.is_quantized, (op.inputs[0], op.name))):
            continue
        result = graph[op.name]
        real = rewriter.dequantize(op.inputs[0], f"{op.inputs[0]}/real", op.source)
        values, bounded = (rewriter.add_float(f"{result.name}/{word}", result) for word in ("values", "bounded"))
        bounds = [bound if math.isfinite(bound) else None for bound in kind_of(op).interval(graph, op)]
        clip = rewriter.clip(values, bounds, bounded, op.source)
        if KERNELS["onnxruntime:optimized"].fault(graph, op):
            clip = replace(clip, kind="Min", inputs=(values, clip.inputs[2]))
        in_float = replace(op, attributes=drop_keys(op.attributes, "arithmetic"), inputs=(real,), outputs=(values,))
        rewriter.replace(op, in_float, clip, op.derive("Quantize", (bounded,), (result.name,)))
    return rewriter.finish_with(lambda count: f"{format_count(count, 'Softmax')} computed in float, and clipped")
