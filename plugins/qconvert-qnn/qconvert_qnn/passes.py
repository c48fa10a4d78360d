"""Passes for HTP in addition to those of the target portable: no operator that HTP refuses, and the quantizations of its kernels."""

from __future__ import annotations

from dataclasses import replace

from qconvert.plugin import Change, Graph, Op, Quantization, Rewriter, Target, format_count, integer_range, lower
from qconvert_qnn.operators import FIXED_16, refusal_reason


def lower_for_htp(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Decompose operators for which HTP fails, in float between the data and the result.

    onnxruntime-qnn fuses a Relu into a Gemm only where the zero point of the result implies it, and leaves the Gemm to the CPU otherwise.
    """
    found = lower(graph, refusal_reason)
    rewriter, count = Rewriter(found.graph), len(found.reasons)
    for op in rewriter:
        result = found.graph[op.outputs[0]]
        if op.kind != "Gemm" or op["activation"] != "relu" or result.quantization is None:
            continue
        if (result.quantization.zero_point == integer_range(result.dtype)[0]).all():
            continue
        inner = rewriter.add(f"{result.name}/unlimited", result)
        real, limited = (rewriter.add(f"{result.name}/{word}", result, dtype="float32", quantization=None) for word in ("real", "limited"))
        bare = replace(op.with_attributes(activation=""), outputs=(inner,))
        relu = Op("Relu", (real,), (limited,), {}, op.source)
        rewriter.replace(op, bare, Op("Dequantize", (inner,), (real,)), relu, Op("Quantize", (limited,), (result.name,)))
        count += 1
    return (rewriter.finish(), (f"{format_count(count, 'operator')} that HTP fails at, replaced by others",)) if count else (graph, ())


def htp_scales(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Give results the quantization of HTP's kernels, followed by a Requantize to their own.

    Softmax of 8 bits with a zero point other than 0 is computed with 16 bits; curves of 16 bits get the scale of FIXED_16.
    """
    rewriter = Rewriter(graph)
    count = 0
    for op in rewriter:
        result = graph[op.outputs[0]] if op.kind in FIXED_16 else None
        if result is None or result.quantization is None:
            continue
        q, fixed = result.quantization, FIXED_16[op.kind]
        stated = (float(q.scale.reshape(-1)[0]), int(q.zero_point.reshape(-1)[0]))
        if stated == fixed if result.dtype == "uint16" else op.kind != "Softmax" or stated[1] == 0:
            continue
        wide = rewriter.add(f"{result.name}/htp", result, dtype="uint16", quantization=Quantization.per_tensor(*fixed))
        rewriter.replace(op, replace(op, outputs=(wide,)), Op("Requantize", (wide,), (result.name,), {}, op.source))
        count += 1
    if not count:
        return graph, ()
    return rewriter.finish(), (f"{format_count(count, 'result')} rounded to the scales that HTP computes in first",)
