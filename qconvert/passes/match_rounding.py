"""match_rounding: additions and means of 8-bit tensors, and arithmetic of 16-bit ones, give the integers of the source's kernel.

TFLite's default kernel (XNNPACK) adds with 20-bit multipliers and rounds ties up; onnxruntime's QLinearAdd adds in float32 and rounds
ties to even; PyTorch's programs round the exact sum. For about half of all additions the two are equal on all 65,536 pairs of inputs, which
is simply tried here. The rest get the attribute `arithmetic`: ONNX's writer gives them input scales at which QLinearAdd is equal too
(arithmetic/nudged.py), or, where there are none, spells XNNPACK's arithmetic out in float64; PyTorch's spells it out in int64. With
numerics "fast" nothing is done: a share of about 0.001% differs by 1.

TFLite's convolutions of 16-bit data keep 16 bits of their multiplier, which moves 3 to 12% of the integers by 1. They are spelled out as
two convolutions in float32, where the sums of either half of the data are exact; sums, differences and products of 16 bits in float64.

Means and sums over axes are made of integers, which are exact in float32, and not of their real values; what follows is on few elements.
Else ties fall either way: on one grid the mean of an even number of elements often is one.

TFLite's SQRT of 8 and 16 bits drops the fraction of its result, where others round: about half of all codes differ by 1. Behind the root
the result is divided by its scale, rounded down, and multiplied again.

Additions, averages and first roundings of PyTorch's engines, which a reader notes at the operators: see torch_rounding.py.
"""

from __future__ import annotations

import json
from typing import Any

from qconvert.arithmetic import adds_alike, dequantize, onnxruntime_add, quantize, xnnpack_adds
from qconvert.graph import Graph, Op, Quantization
from qconvert.graph.metadata import SOURCE_KERNELS, STATED_ATTRIBUTES
from qconvert.operators import computes_as_tflite, convolves_as_tflite, kernels_reduction
from qconvert.passes.torch_rounding import TorchRounding, rounds_as_torch, without_torch
from qconvert.plugins import Target
from qconvert.rewriting import Rewriter

__all__ = ["run"]


def run(graph: Graph, target: Target, *, numerics: str = "exact", biases: str = "round", io: str = "") -> tuple[Graph, tuple[str, ...]]:
    """Mark the operators of a model of LiteRT's kernels that onnxruntime would round otherwise; rewrite those of PyTorch's."""
    source = graph.metadata.get(SOURCE_KERNELS, "")
    of_torch = source.startswith("torch-") or (graph.is_from("torch") and biases == "keep") or any(map(rounds_as_torch, graph.ops))
    rewritten: tuple[str, ...] = ()
    if of_torch:
        graph, rewritten = _of_torch(graph, target, numerics, biases, io == "integer")
    if numerics != "exact" or source != "tflite-xnnpack" or target.format == "tflite":
        return graph, rewritten
    own = onnxruntime_add if target.format == "onnx" else _exact_add
    rewriter = Rewriter(graph)
    marked: list[str] = []
    for op in rewriter:
        if arithmetic := _arithmetic(graph, op, own):
            rewriter.replace(op, op.with_attributes(arithmetic=arithmetic))
            marked.append(arithmetic)
    notes = {
        "xnnpack": "additions are decomposed, to round as XNNPACK does for every pair of inputs",
        "xnnpack_qs8": "means and sums over axes are computed in integers and rounded as XNNPACK does",
        "xnnpack_qu8": "means and sums over axes are computed in integers and rounded as XNNPACK does",
        "tflite": "operators are decomposed, to round as TFLite's own kernels do",
    }
    listed = tuple(f"{marked.count(name)} {text}" for name, text in notes.items() if name in marked)
    return rewriter.finish(), (*rewritten, *listed)


def _of_torch(graph: Graph, target: Target, numerics: str, biases: str, io_integer: bool) -> tuple[Graph, tuple[str, ...]]:
    if numerics != "exact":
        return without_torch(graph), ()
    if target.format not in ("onnx", "tflite"):
        return graph, ()
    rewriter = Rewriter(graph)
    rounding = TorchRounding(rewriter, target, biases == "keep", io_integer)
    for op in rewriter:
        rounding.visit(op)
    notes = tuple(f"{count} {text}" for text, count in rounding.done.items())
    if not rounding.stated:
        return rewriter.finish(), notes
    return rewriter.finish(metadata={**graph.metadata, STATED_ATTRIBUTES: json.dumps(rounding.stated)}), notes


def _arithmetic(graph: Graph, op: Op, own: Any) -> str:
    """Return the kernel as which an operator has to round, "" if as any does."""
    if rounds_as_torch(op):
        return ""
    if convolves_as_tflite(graph, op) or computes_as_tflite(graph, op):
        return "tflite"
    if op.kind == "Sqrt":
        grids = [graph[name].quantization for name in (*op.inputs, *op.outputs)]
        return "tflite" if all(grid is not None and grid.is_per_tensor for grid in grids) else ""
    if op.kind in ("ReduceMean", "ReduceSum"):
        return kernels_reduction(graph, op)
    if op.kind != "Add":
        return ""
    tensors = [graph[name] for name in (*op.inputs, *op.outputs)]
    found = [tensor.quantization for tensor in tensors]
    eight_bit = {tensor.dtype for tensor in tensors} in ({"int8"}, {"uint8"})
    if not eight_bit or any(q is None or not q.is_per_tensor for q in found):
        return ""
    a, b, output = (q for q in found if q is not None)
    if not xnnpack_adds((a, b), output):
        return ""
    return "" if adds_alike("xnnpack", own, (a, b), output, tensors[0].dtype) else "xnnpack"


def _exact_add(a: Any, b: Any, inputs: tuple[Quantization, Quantization], output: Quantization, dtype: str) -> Any:
    """What a target gives that rounds the real sum once."""
    return quantize(dequantize(a, inputs[0]) + dequantize(b, inputs[1]), output, dtype)
