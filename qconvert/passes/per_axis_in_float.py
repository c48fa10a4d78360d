"""per_axis_in_float: activations with scales along an axis are quantized and dequantized by float operators around integers of scale 1.

NNCF quantizes the data of depthwise convolutions for each channel; TFLite has one scale for an activation. round(x / scale) + zero_point is
saturated by a Quantize of scale 1, and the stored integers stay: (integer - zero_point) * scale follows a Dequantize of scale 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Graph, Op, Tensor
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def per_axis_in_float(graph: Graph, target: Target | None) -> PassResult:
    """Rewrite each Quantize along an axis whose result Dequantize operators alone read, and these."""
    rewriter = Rewriter(graph)
    integers: dict[str, str] = {}
    for op in rewriter.of_kind("Quantize", "Dequantize"):
        if op.kind == "Quantize" and _is_covered(rewriter, op):
            integers[op.name] = _quantize(rewriter, op)
        elif op.inputs[0] in integers:
            _dequantize(rewriter, op, integers[op.inputs[0]])
    return rewriter.finish_with(lambda count: f"activations with scales along an axis by float operators: {count}", len(integers))


def _is_covered(rewriter: Rewriter, op: Op) -> bool:
    graph = rewriter.graph
    data, result = graph[op.inputs[0]], graph[op.name]
    quantization = result.quantization
    if quantization is None or quantization.axis is None or quantization.block_size or result.rank is None or data.dtype != "float32":
        return False
    readers = rewriter.readers.get(op.name, ())
    return op.name not in graph.outputs and all(item.kind == "Dequantize" and graph[item.name].dtype == "float32" for item in readers)


def _quantize(rewriter: Rewriter, op: Op) -> str:
    """Put float operators and a Quantize of scale 1 in the place of a Quantize; return the name of the same integers."""
    result = rewriter[op.name]
    scale, zero_point = _factors(rewriter, result)
    steps = rewriter.compute_plain("Div", (op.inputs[0], scale), result, "float32", op.source)
    if zero_point:
        steps = rewriter.compute_plain("Round", (steps,), result, "float32", op.source)
        steps = rewriter.compute_plain("Add", (steps, zero_point), result, "float32", op.source)
    one = replace(result.require_quantization(), scale=np.ones(1, np.float32), zero_point=np.zeros(1, np.int64), axis=None)
    found = rewriter.add(f"{result.name}/integers", result, quantization=one)
    rewriter.replace(op, op.derive("Quantize", (steps,), (found,)))
    return found


def _dequantize(rewriter: Rewriter, op: Op, integers: str) -> None:
    """Put a Dequantize of scale 1 and float operators in the place of a Dequantize."""
    result = rewriter[op.name]
    scale, zero_point = _factors(rewriter, rewriter[op.inputs[0]])
    steps = rewriter.dequantize(integers, f"{result.name}/steps", op.source)
    if zero_point:
        steps = rewriter.compute_plain("Sub", (steps, zero_point), result, "float32", op.source)
    rewriter.replace(op, op.derive("Mul", (steps, scale), op.outputs))


def _factors(rewriter: Rewriter, tensor: Tensor) -> tuple[str, str]:
    """Return the names of scales and zero points as constants that broadcast along the axis; "" where all zero points are 0."""
    quantization = tensor.require_quantization()
    shape = [1] * (tensor.rank or 0)
    shape[quantization.axis or 0] = -1
    scale, zero_point = (np.asarray(values, np.float32).reshape(shape) for values in (quantization.scale, quantization.zero_point))
    points = rewriter.shared_constant(f"{tensor.name}/zero_point", zero_point) if zero_point.any() else ""
    return rewriter.shared_constant(f"{tensor.name}/scale", scale), points
