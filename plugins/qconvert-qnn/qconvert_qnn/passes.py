"""Passes for HTP in addition to those of the target portable: no operator that HTP refuses, and the quantizations of its kernels."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from qconvert.plugin import Attribute, Change, Graph, Op, Quantization, Rewriter, Target, Tensor, format_count, integer_range, lower
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
        relu = op.derive("Relu", (real,), (limited,))
        rewriter.replace(op, bare, Op("Dequantize", (inner,), (real,)), relu, Op("Quantize", (limited,), (result.name,)))
        count += 1
    return (rewriter.finish(), (f"{format_count(count, 'operator')} that HTP fails at, replaced by others",)) if count else (graph, ())


def htp_scales(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Give results the quantization of HTP's kernels, followed by a Requantize to their own.

    Softmax of 8 bits with a zero point other than 0 is computed with 16 bits; curves of 16 bits get the scale of FIXED_16.
    """
    rewriter = Rewriter(graph)
    for op in rewriter:
        result = graph[op.outputs[0]] if op.kind in FIXED_16 else None
        if result is None or result.quantization is None:
            continue
        q, fixed = result.quantization, FIXED_16[op.kind]
        stated = (float(q.scale.reshape(-1)[0]), int(q.zero_point.reshape(-1)[0]))
        if stated == fixed if result.dtype == "uint16" else op.kind != "Softmax" or stated[1] == 0:
            continue
        wide = rewriter.add(f"{result.name}/htp", result, dtype="uint16", quantization=Quantization.per_tensor(*fixed))
        rewriter.replace(op, replace(op, outputs=(wide,)), op.derive("Requantize", (wide,), (result.name,)))
    return rewriter.finish_with(lambda count: f"{format_count(count, 'result')} rounded to the scales that HTP computes in first")


def pool_before_concat(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Put a MaxPool of one element before each input of a Concat whose scale or zero point is not the result's. Exact.

    HTP joins data of one quantization alone, so it gives the result's to whatever computes an input. A Reshape, Transpose, DepthToSpace or
    SpaceToDepth then copies integers that stand for other values, and arithmetic no longer clips to the range of its own result. HTP
    changes nothing before a MaxPool (tests/test_operators.py).
    """
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("Concat"):
        ends = [end for end in rewriter.readers.get(op.outputs[0], ()) if end.kind == "Quantize"]
        begins = [rewriter.producers.get(name) for name in op.inputs]
        inputs = list(op.inputs)
        for place, begin in enumerate(begins):
            if not ends or begin is None or begin.kind != "Dequantize":
                continue
            data = graph[begin.inputs[0]]
            is_computed = data.name in rewriter.producers and data.static_shape is not None
            if is_computed and not data.shares_quantization(graph[ends[0].outputs[0]]):
                inputs[place] = rewriter.dequantize(_pool(rewriter, data, op.source), f"{data.name}/joined", op.source)
        if inputs != [*op.inputs]:
            rewriter.replace(op, replace(op, inputs=tuple(inputs)))
    return rewriter.finish_with("data of {} Concat go through a MaxPool of one element, so that HTP keeps their scales".format)


def _pool(rewriter: Rewriter, data: Tensor, source: str) -> str:
    """Put a MaxPool of one element after quantized data, as an image between two Reshapes where they are none; return its result."""

    def run(kind: str, name: str, wanted: str, shape: tuple[int, ...], *more: str, **attributes: Attribute) -> str:
        real = rewriter.dequantize(name, f"{wanted}/data", source)
        result = rewriter.compute(kind, (real, *more), f"{wanted}/real", replace(rewriter[real], shape=shape), source, **attributes)
        return rewriter.compute("Quantize", (result,), wanted, replace(data, shape=shape), source)

    shape = data.static_shape or ()
    image = shape if len(shape) == 4 else (1, 1, prod(shape[:-1]), prod(shape[-1:]))
    name = data.name
    if image != shape:
        name = run("Reshape", name, f"{data.name}/image", image, rewriter.constant(f"{data.name}/image_sizes", [*image]))
    one: dict[str, Attribute] = {"kernel_shape": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_first"}
    name = run("MaxPool", name, f"{data.name}/pooled", image, **one)
    if image != shape:
        name = run("Reshape", name, f"{data.name}/joint", shape, rewriter.constant(f"{data.name}/sizes", [*shape]))
    return name
